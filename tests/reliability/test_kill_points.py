"""SIGKILL at any point of a search with any method: the same result, and nothing paid for twice."""

import random
import signal
from collections import Counter
from pathlib import Path

import pytest
from reliability.children import METHODS, billed, in_child, journaled, search, stable

KILLS = 5  # of every method: 60 in all


def killed_and_resumed(method: str, folder: Path, seed: int, kills: int) -> None:
    whole, run_dir = folder / "whole", folder / "run"
    whole_bill, bill = folder / "whole.bill", folder / "run.bill"
    assert in_child(search, method, whole, whole_bill, None) == 0
    num_calls = int(whole_bill.with_suffix(".calls").read_text())
    assert set(billed(whole_bill).values()) == {1}
    rng, lost, num_killed = random.Random(f"{method} {seed}"), Counter(), 0
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
    assert num_killed >= 1
    assert in_child(search, method, run_dir, bill, None) == 0
    assert billed(bill) == billed(whole_bill) + lost
    assert stable(run_dir) == stable(whole)
    for name in ("journal.jsonl", "trace.csv", "settings.json"):
        assert (run_dir / name).read_bytes() == (whole / name).read_bytes()
    assert {p.name for p in run_dir.iterdir()} == {p.name for p in whole.iterdir()}


@pytest.mark.parametrize("method", ["scope", "llmselector"])
def test_a_killed_search_is_resumed(tmp_path, method):
    killed_and_resumed(method, tmp_path, seed=0, kills=2)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_any_method_is_resumed_after_many_kills(tmp_path, method):
    killed_and_resumed(method, tmp_path, seed=1, kills=KILLS)
