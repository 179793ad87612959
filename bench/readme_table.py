"""Render a demo result as the table of the README.

Usage: python bench/readme_table.py bench/results/FILE.json          print it
       python bench/readme_table.py --write bench/results/FILE.json  put it into README.md
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

README = Path(__file__).parent.parent / "README.md"


def render(result: dict[str, Any]) -> str:
    """Markdown table of a comparison, with where it was measured."""
    baseline, candidate = (arm["name"] for arm in result["arms"])
    lines = [f"| | {baseline} | {candidate} | ratio |", "|---|---:|---:|---:|"]
    for row in result["comparison"]:
        ratio = "–" if row["ratio"] is None else f"{row['ratio']:.2f}"
        values = " | ".join(_amount(row[side], row["unit"]) for side in ("baseline", "kvflow"))
        lines.append(f"| {row['metric']} | {values} | {ratio} |")
    machine, settings = result["machine"], result["settings"]
    lines += [
        "",
        f"{machine['cpu']}, {machine['cores']} cores, SGLang {result['versions']['sglang']} on the CPU engine; "
        f"{settings['rounds']} rounds of {settings['workflows']} workflows per arm, {settings['at_once']} at once, "
        f"arms in turns; device tier {settings['device_tokens']} tokens; identical tokens in both arms: "
        f"{'yes' if result['identical_tokens'] else 'NO'}. `{result['command']}`, {result['created'][:10]}.",
        "",
    ]
    return "\n".join(lines)


def _amount(value: float, unit: str) -> str:
    return f"{value:.3f} s" if unit == "s" else f"{value:,.0f}"


def main(arguments: list[str]) -> None:
    path = Path(arguments[-1])
    table = render(json.loads(path.read_text()))
    if "--write" not in arguments:
        print(table)
        return
    source = path.resolve().relative_to(README.parent)
    block = f"<!-- table: {source} -->\n{table}<!-- end -->"
    README.write_text(re.sub(r"<!-- table: .*?<!-- end -->", lambda _: block, README.read_text(), flags=re.S))


if __name__ == "__main__":
    main(sys.argv[1:])
