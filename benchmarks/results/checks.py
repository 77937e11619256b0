"""How `check` decides: on recorded configurations, and where answers flip from call to call."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from benchmarks.results.planned import Composed, Planned, numbers_text
from scope_torch.bounds.drift import log_detector
from scope_torch.bounds.paired import Outcomes
from scope_torch.cli.compose import compose_task
from scope_torch.evaluators.table import TableEvaluator
from scope_torch.selection.check import check

DELTA, LOSS = 0.05, 0.05
CERTIFICATES = ("sequence", "fresh", "population")
MOST = 40  # configurations of a table, drawn at random
QUERIES, KNOWN = 400, 0.85  # of a simulated data set, and what the reference knows of it
FLIPS = (0.0, 0.05, 0.15)
LOSSES = (0.0, 0.025, 0.05, 0.1)  # true ones; 0.05 is just tolerated
_PASSES = 4
LEAST, BEFORE, EVERY = 0.9, 0.95, 100_000  # bound, quality before a drop, draws per false alarm
DROPS = (0.9, 0.85, 0.8, 0.6, 0.0)  # qualities after it; 0.9 is just allowed
_GOOD, _MOST = 1_000, 9_000  # draws before it, and after it


@dataclass(frozen=True)
class RecordedChecks(Composed):
    """Checks of recorded configurations beside theta_0; the method is the certificate."""

    def measured(self) -> dict[str, Any]:
        """Verdicts, wrong ones, and draws as a share of Q."""
        task = compose_task(list(self.overrides))
        assert isinstance(task.evaluator, TableEvaluator)
        table, problem = task.evaluator.table, task.problem
        at = table.where(problem.theta_ref)
        assert at is not None
        whole = np.argwhere(table.present.all(-1)).tolist()
        others = [tuple(row) for row in whole if tuple(row) != at]
        rng = np.random.default_rng(self.seed)
        chosen = rng.permutation(len(others))[:MOST].tolist()
        quality_0, cost_0 = table.quality[at], table.cost_usd[at]
        rows: list[tuple[str, bool, float, float]] = []
        for number, row in enumerate(others[i] for i in chosen):
            quality, cost = table.quality[row], table.cost_usd[row]
            of = {"new": (quality, cost), "reference": (quality_0, cost_0)}

            def app(models: dict[str, str], query: int, of: Any = of) -> tuple[float, float]:
                quality, cost = of[models["system"]]
                return float(quality[query]), float(cost[query])

            found = check(
                app,
                {"system": "new"},
                reference={"system": "reference"},
                dataset=list(range(problem.num_queries)),
                max_quality_loss=LOSS,
                budget_usd=1e9,
                certificate=self.method,
                delta=DELTA,
                seed=1000 * self.seed + number,
                progress=False,
            )
            truth = bool(quality.mean() >= (1 - LOSS) * quality_0.mean() - 1e-12)
            paid = found.spent_usd / float(cost.sum() + cost_0.sum())
            rows.append((found.verdict, truth, len(found.pairs) / problem.num_queries, paid))
        return {
            "num_queries": problem.num_queries,
            **_counts([(verdict, truth) for verdict, truth, *_ in rows]),
            "share_of_queries": numbers_text(share for *_, share, _ in rows),
            "share_of_usd": numbers_text(usd for *_, usd in rows),
        }


@dataclass(frozen=True)
class SimulatedChecks(Planned):
    """Checks with fresh answers, some of which flip; at most four draws for each query.

    Args:
        flips: Chance that an answer is the other one.
        loss: True loss of expected quality.
        checks: How many.
    """

    flips: float
    loss: float
    checks: int = 1000

    def measured(self) -> dict[str, Any]:
        """Verdicts, wrong ones, draws; and those of a test of fixed size with the same power."""
        rng = np.random.default_rng(self.seed)
        knows = np.arange(QUERIES) < round(KNOWN * QUERIES)
        of_reference = np.where(knows, 1 - self.flips, self.flips)
        of_new = of_reference.copy()
        lost = self.loss * float(of_reference.sum()) / (1 - 2 * self.flips)  # queries not known
        of_new[: int(lost)] = self.flips
        of_new[int(lost)] -= lost % 1 * (1 - 2 * self.flips)
        verdicts: list[tuple[str, bool]] = []
        draws: list[int] = []
        for _ in range(self.checks):
            query = rng.integers(QUERIES, size=_PASSES * QUERIES)
            new, old = (rng.random(len(query)) < p[query] for p in (of_new, of_reference))
            both = Outcomes(new.astype(float), old.astype(float), 0.0, 1.0, keeps_low=False)
            kept, number = both.verdict(1 - LOSS, DELTA, DELTA)
            name = {True: "pass", False: "fail", None: "undecided"}[kept]
            verdicts.append((name, self.loss <= LOSS))
            draws.append(number)
        counts = _counts(verdicts)
        power = (counts["passed"] if self.loss <= LOSS else counts["failed"]) / self.checks
        return {
            "num_queries": QUERIES,
            **counts,
            "draws": statistics.fmean(draws),
            "draws_fixed": self._fixed(of_new, of_reference, power),
        }

    def _fixed(self, of_new: np.ndarray, of_old: np.ndarray, power: float) -> float | None:
        """Pairs that a paired z-test needs, one-sided at level delta, for the same power.

        None where no number gives it, or where differences vary so little that it needs below 30
        and the normal approximation means nothing.
        """
        a, z = 1 - LOSS, statistics.NormalDist().inv_cdf
        mean = float((of_new - a * of_old).mean())
        square = (
            of_new * (1 - of_old) + (of_new * of_old) * (1 - a) ** 2 + (1 - of_new) * of_old * a**2
        )
        variance = float(square.mean()) - mean**2
        if power <= DELTA or abs(mean) < 1e-3:
            return None
        reach = z(1 - DELTA) + z(min(power, 0.999))
        number = (reach / mean) ** 2 * variance
        return number if number >= 30 else None


@dataclass(frozen=True)
class SimulatedRechecks(Planned):
    """Looks at a choice for ever; answers are 0 or 1, drawn anew each time.

    Args:
        quality: After the drop.
        looks: How many.
    """

    quality: float
    looks: int = 300

    def measured(self) -> dict[str, Any]:
        """Alarms before and after the drop, and how many draws after it they came."""
        rng, delays, early = np.random.default_rng(self.seed), list[int](), 0
        for _ in range(self.looks):
            chance = np.repeat([BEFORE, self.quality], [_GOOD, _MOST])
            right = rng.random(len(chance)) < chance
            both = Outcomes(right.astype(float), None, 0.0, 1.0, keeps_low=False)
            found = log_detector(*both.bet(LEAST, kept=False))
            reached = np.flatnonzero(found >= math.log(EVERY))
            if len(reached):
                early += int(reached[0]) < _GOOD
                delays.append(int(reached[0]) - _GOOD)
        late = [delay for delay in delays if delay >= 0]
        return {
            "looks": self.looks,
            "alarms_before": early,
            "alarms_after": len(late),
            "delay": statistics.fmean(late) if late else None,
        }


def recheck_cells(seed: int) -> list[SimulatedRechecks]:
    """One for each quality after the drop."""
    return [
        SimulatedRechecks("recheck", f"falls to {quality:g}", seed, None, quality)
        for quality in DROPS
    ]


def _counts(verdicts: Iterable[tuple[str, bool]]) -> dict[str, int]:
    found = list(verdicts)
    names = [name for name, _ in found]
    return {
        "checks": len(found),
        "passed": names.count("pass"),
        "failed": names.count("fail"),
        "undecided": names.count("undecided"),
        "wrong_pass": sum(name == "pass" and not truth for name, truth in found),
        "wrong_fail": sum(name == "fail" and truth for name, truth in found),
    }


def recorded_cells(tasks: Iterable[str], seed: int) -> list[RecordedChecks]:
    """MathQA and recorded tasks, with every certificate."""
    names = ["mathqa", *(f"recorded/{task}" for task in tasks)]
    return [
        RecordedChecks(problem, certificate, seed, None, (f"task={problem}",))
        for problem, certificate in product(names, CERTIFICATES)
    ]


def simulated_cells(seed: int) -> list[SimulatedChecks]:
    """Every chance of a flip with every true loss."""
    return [
        SimulatedChecks(f"flips {flips:g}", f"loss {loss:g}", seed, None, flips, loss)
        for flips, loss in product(FLIPS, LOSSES)
    ]
