"""Recording a program, and replaying what was recorded against a server, with hints and without.

The recording has what was asked, what it shared and how long tools took, and no text. Answers that are streamed have no
length in it, unless a later prompt goes on from them: record without `stream=True` where you can. Replaying empties the
server's cache, and its storage tier if it has one: use a server of your own.

Usage: python examples/record_and_replay.py [http://localhost:30000]
"""

import subprocess
import sys
import tempfile
from pathlib import Path

URL = sys.argv[1] if len(sys.argv) > 1 else "http://localhost:30000"
PROGRAM = Path(__file__).parent / "tool_ttls.py"
KVFLOW = [sys.executable, "-m", "kvflow"]

with tempfile.TemporaryDirectory() as folder:
    trace = str(Path(folder) / "run.jsonl")
    subprocess.run([*KVFLOW, "trace", "record", "--out", trace, "--", sys.executable, str(PROGRAM), URL], check=True)
    subprocess.run([*KVFLOW, "trace", "stats", trace], check=True)
    arms = ["--arm", "silent=no-hints", "--arm", "telling=hints"]
    replay = [*KVFLOW, "replay", trace, "--url", URL, *arms, "--rounds", "1", "--free", "--folder", folder]
    subprocess.run(replay, check=True)
