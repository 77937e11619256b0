"""SIGKILL at any point of a search with any method: the same result, and nothing paid for twice."""

import random
import signal
from collections import Counter
from pathlib import Path

import pytest
from long_runs import IS_LONG
from reliability.children import METHODS, billed, in_child, journaled, search, stable

IN_LONG = 84  # of every method
KILLS = IN_LONG if IS_LONG else 2
AT_A_TIME = 7  # kills of one search before it is left to end


def whole_search(method: str, folder: Path) -> int:
    """Makes the search that the killed ones must equal; returns the number of its calls."""
    assert in_child(search, method, folder / "whole", folder / "whole.bill", None) == 0
    assert set(billed(folder / "whole.bill").values()) == {1}
    return int((folder / "whole.calls").read_text())


def killed_and_resumed(
    method: str, folder: Path, name: str, kills: int, num_calls: int, rng: random.Random
) -> int:
    """Kills a search so many times, and lets it end; returns how often it died."""
    whole, run_dir = folder / "whole", folder / name
    whole_bill, bill = folder / "whole.bill", folder / f"{name}.bill"
    lost, num_killed = Counter(), 0
    for _ in range(kills):
        before = billed(bill)
        status = in_child(search, method, run_dir, bill, rng.randrange(num_calls))
        num_killed += status == -signal.SIGKILL
        assert status in (0, -signal.SIGKILL)
        # At most what was being observed is on the bill and not in the journal.
        kept = {o.request for o in journaled(run_dir)}
        in_flight = Counter(r for r in billed(bill) - before if r not in kept)
        assert in_flight.total() <= 1
        lost += in_flight
    assert in_child(search, method, run_dir, bill, None) == 0
    assert billed(bill) == billed(whole_bill) + lost
    assert stable(run_dir) == stable(whole)
    for file in ("journal.jsonl", "trace.csv", "settings.json"):
        assert (run_dir / file).read_bytes() == (whole / file).read_bytes()
    assert {p.name for p in run_dir.iterdir()} == {p.name for p in whole.iterdir()}
    return num_killed


@pytest.mark.parametrize("method", ["scope", pytest.param("llmselector", marks=pytest.mark.slow)])
def test_a_killed_search_is_resumed(tmp_path, method):
    num_calls, rng = whole_search(method, tmp_path), random.Random(method)
    assert killed_and_resumed(method, tmp_path, "run", 2, num_calls, rng) >= 1


def test_the_page_says_how_many_kills_there_are():
    page = Path(__file__).resolve().parents[2] / "docs/reliability.md"
    said = f"{IN_LONG * len(METHODS):,} SIGKILLs at random calls of {len(METHODS)} methods"
    assert said in page.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_any_method_is_resumed_after_many_kills(tmp_path, method):
    num_calls, rng = whole_search(method, tmp_path), random.Random(f"{method} 1")
    killed = number = 0
    while killed < KILLS:
        number += 1
        killed += killed_and_resumed(
            method, tmp_path, f"run{number}", min(AT_A_TIME, KILLS - killed), num_calls, rng
        )
    assert killed == KILLS
