"""KVFlow's own workloads (arXiv 2507.07400, section 5): chains of ten agents, alone and many at once.

Single: ten agents in a chain with fixed prompts of 8,192 or 4,096 tokens, about 32 tokens of input (the answer of the
agent before it) and 32 of output each; the device holds four agents' prompts, so that recency evicts each prompt just
before it is needed.
Many: up to 64 workflows at once, prefixes of 512 or 1,024 tokens.

Fixed prompts are scaled down by --prefix-scale on the CPU engine, where the device is sized likewise.

Usage: python bench/bench_kvflow_paper.py [--shape 8192|4096|512|1024] [--profile gpu] [options of kvflow replay]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from replaying import Preset, parser, read, run  # noqa: E402

from kvflow.trace import SynthOptions, synthetic_trace, write_trace  # noqa: E402

AGENTS = 10
SAID_TOKENS = 32
"""Of an input and of an output, on average."""
OWN_TOKENS = 3 * SAID_TOKENS
"""Of one call, beside the fixed prompt: input and output, with room for those that are longer than the average."""
TURNS = 8
"""A chain is run several times: its first pass finds nothing cached, whatever the order."""


def preset(shape: int, profile: str, prefix_scale: float, folder: Path) -> Preset:
    """Write the trace of a shape, and choose sizes."""
    fixed = max(16, int(shape * prefix_scale))
    single = shape >= 4096
    workflows = 4 if single else 64
    sizes = SynthOptions(
        workflows=workflows,
        agents=AGENTS,
        turns=TURNS,
        fixed_tokens=fixed,
        task_tokens=SAID_TOKENS,
        output_tokens=SAID_TOKENS,
        seed=1,
        relay=True,
    )
    path = folder / f"chain-{shape}.jsonl"
    write_trace(path, *synthetic_trace("chain", sizes))
    device = 4 * (fixed + OWN_TOKENS) if single else int(0.33 * AGENTS * (fixed + OWN_TOKENS * workflows))
    host = AGENTS * (fixed + OWN_TOKENS * workflows * TURNS)
    options: dict[str, str | int | float] = {"programs": workflows, "rounds": 2}
    options |= {"device-tokens": device, "host-tokens": host, "max-gap": 1}
    if single:
        options["concurrency"] = 1
    arms = ("lru", "no-host", "lpm", "kvflow-steps", "kvflow-no-prefetch", "kvflow")
    return Preset(traces=(path,), options=options, arms=arms)


def main() -> None:
    """Read options and run."""
    made = parser(__doc__)
    made.add_argument("--shape", type=int, choices=(8192, 4096, 1024, 512), default=8192, help="fixed prompt, tokens")
    made.add_argument("--prefix-scale", type=float, help="factor of fixed prompts; cpu: 0.25, gpu: 1")
    options, further = read(made)
    scale = options.prefix_scale or (0.25 if options.profile == "cpu" else 1.0)
    with tempfile.TemporaryDirectory() as name:
        sys.exit(run(preset(options.shape, options.profile, scale, Path(name)), options, further))


if __name__ == "__main__":
    main()
