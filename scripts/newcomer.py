"""Times the newcomer's path by its steps: one application, connected in three ways.

    python scripts/newcomer.py            # a minute; needs openai, starlette, uvicorn
    python scripts/newcomer.py --write    # puts the table into docs/howto/your-application.md

The application, its forty questions and the LLMs, an upstream on this machine that answers at once,
are those of tests/selection/test_newcomer.py. So the seconds are those of this package alone.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run without installing
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from scope_torch.results.saving import load_models

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "howto" / "your-application.md"
BEGIN, END = "<!-- begin: scripts/newcomer.py -->\n", "<!-- end -->"

HEADER = (
    "| way | lines of adapter | runs of the app | dry run | reference | search | save, load "
    "| USD: the bill, the upstream's |\n| --- | --- | --- | --- | --- | --- | --- | --- |\n"
)
WAYS = {"a function": 40, "the endpoint": 40, "a command": 15}  # questions


def timed(step: Callable[[], Any]) -> tuple[Any, float]:
    """What a step returns, and its seconds."""
    began = time.perf_counter()
    found = step()
    return found, time.perf_counter() - began


def row(number: int, way: str, upstream: Any, folder: Path) -> str:
    """One line of the table."""
    newcomer, world = import_module("selection.test_newcomer"), import_module("selection.world")
    command = [sys.executable, str(newcomer.APPLICATION), "{input}"]
    app = command if number == 2 else newcomer.adapter(number, upstream)
    lines = 0 if number == 2 else len(newcomer.adapters()[number].strip().splitlines())
    changes: dict[str, Any] = {"concurrency": 8 if number < 2 else 2}
    changes |= {"endpoint": newcomer.endpoint(upstream)} if number else {"prices": newcomer.LLMS}
    questions = world.QUESTIONS[: WAYS[way]]

    def select(**more: Any) -> Any:
        return newcomer.selected(app, folder, questions, **changes, **more)

    _, dry_s = timed(lambda: select(dry_run=True))
    result, seconds = timed(select)
    _, saved_s = timed(lambda: load_models(result.save(folder / "models.json")))
    search_s = result.seconds["total"]
    steps = " | ".join(f"{s:.2g} s" for s in (dry_s, seconds - search_s, search_s, saved_s))
    billed = upstream.usd_by_tag()[""]
    usd = f"{result.bill.total_usd:.6f}, {billed:.6f}"
    calls = result.bill.num_calls
    return f"| {way}, {len(questions)} questions | {lines} | {calls} | {steps} | {usd} |\n"


def table() -> str:
    """The whole table, with the seconds of the import above it."""
    world = import_module("selection.world")
    os.environ |= {"PLANNER_MODEL": "scope/planner", "SOLVER_MODEL": "scope/solver"}
    code = "import scope_torch as st; st.select, st.Endpoint"
    _, import_s = timed(lambda: subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT))
    lines = [f"`import scope_torch` and its first use take {import_s:.2g} s.\n\n", HEADER]
    with tempfile.TemporaryDirectory() as folder:
        for number, way in enumerate(WAYS):
            with world.upstream() as upstream:
                lines.append(row(number, way, upstream, Path(folder) / str(number)))
    return "".join(lines)


def main(arguments: list[str] | None = None) -> None:
    """Prints the table; see the module's documentation."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"put the table into {PAGE.name}")
    write = parser.parse_args(arguments).write
    made = table()
    print(made)
    if write:
        page = PAGE.read_text()
        PAGE.write_text(
            page.split(BEGIN)[0] + BEGIN + "\n" + made + "\n" + END + page.split(END)[1]
        )


if __name__ == "__main__":
    main()
