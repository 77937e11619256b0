"""What a check found: one configuration beside another one."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from scope_torch.constraints import QUALITY, Constraint
from scope_torch.observation import Observation
from scope_torch.problem import SelectionProblem
from scope_torch.results.digits import Side, level, per_thousand, plain, share, usd
from scope_torch.results.estimate import Estimate
from scope_torch.results.table import disagreements_of

if TYPE_CHECKING:
    import numpy as np
    import polars

Verdict = Literal["pass", "fail", "undecided"]
Certificate = Literal["fresh", "sequence", "population"]
EXIT_STATUS: dict[Verdict, int] = {"pass": 0, "fail": 1, "undecided": 3}  # 2: a wrong input
_ABOUT = {
    "fresh": "expected outcomes on these {Q} queries, however answers vary",
    "sequence": "the answers to these {Q} queries, if answers do not vary",
    "population": "queries of which these {Q} are a random sample",
}
_MOST_RATIO = 2.0  # times 1, the bound and the ratio of both averages: so far a level is tried
_Z = statistics.NormalDist().inv_cdf(0.975)


class Pair(NamedTuple):
    """Both configurations on one query.

    Attributes:
        new: Of the configuration that is checked.
        reference: Of the one that it is compared with; None if nothing is relative to it.
    """

    new: Observation
    reference: Observation | None


@dataclass(frozen=True)
class Limit:
    """A constraint, and what the pairs say about it.

    Args:
        constraint: As given.
        kept: Whether it holds; None if that is not clear.
        ratio: Of the averages of both; if the bound is absolute, the new average, in the outcome's
            own unit, or a share of runs. Its interval: each end is wrong with probability delta at
            most; None where the pairs say nothing.
    """

    constraint: Constraint
    kept: bool | None
    ratio: Estimate

    @property
    def loss(self) -> Estimate:
        """1 - ratio, where that is a loss of quality."""
        ratio = self.ratio
        value, low, high = (None if x is None else 1 - x for x in ratio[:3])
        return Estimate(value, high, low, ratio.basis)

    def __str__(self) -> str:
        told = {True: "holds", False: "does not hold", None: "undecided"}[self.kept]
        if self.constraint.name == QUALITY and self.constraint.is_relative:
            number, ends = _in_words(self.loss, _signed)
            return (
                f"loss of quality: {number}{ends}, tolerated {share(1 - self.constraint.value)}: "
                f"{told}"
            )
        times = " times the reference" if self.constraint.is_relative else ""
        times += " of runs" * self.constraint.is_share
        number, ends = _in_words(self.ratio, share if self.constraint.is_share else plain)
        return f"{self.constraint}: {number}{times}{ends}: {told}"


@dataclass(frozen=True, repr=False)
class CheckResult:
    """A verdict on one configuration, and what it rests on.

    Args:
        problem: Names of modules and LLMs.
        theta: Codes of the configuration.
        verdict: `pass`, `fail` or `undecided`.
        limits: Every constraint; that on quality first.
        pairs: In the order of the draws, up to the one that decided.
        certificate: What the verdict is about, see `check`.
        delta: Probability of a wrong verdict, at most.
        stop_reason: Why it ended.
        paid: All observations that were paid for, also those in flight at the end.
        lost_usd: Paid for calls that gave no observation, and for grading old ones anew, in USD.
        num_known: Answers that were known and not asked again.
        is_logged: Whether the reference has one answer to each query, that of a log.
        queries: The inputs.
        expected: What the metric compares with; None if that is not known.
        answers: What the application returned, by configuration and query.

    Attributes:
        exit_status: 0 for `pass`, 1 for `fail`, 3 for `undecided`.
    """

    problem: SelectionProblem
    theta: tuple[int, ...]
    verdict: Verdict
    limits: Sequence[Limit]
    pairs: Sequence[Pair]
    certificate: Certificate
    delta: float
    stop_reason: str
    paid: Sequence[Observation]
    lost_usd: float = 0.0
    num_known: int = 0
    is_logged: bool = False
    queries: Sequence[Any] = ()
    expected: Sequence[Any] | None = None
    answers: Mapping[tuple[tuple[int, ...], int], Any] = field(default_factory=dict, hash=False)

    @property
    def exit_status(self) -> int:
        """Of `scope-torch check`."""
        return EXIT_STATUS[self.verdict]

    @property
    def configuration(self) -> dict[str, str]:
        """The LLM of each module."""
        return self.problem.names(self.theta)

    @property
    def reference(self) -> dict[str, str]:
        """The LLM of each module of the configuration that it is compared with."""
        return self.problem.names(self.problem.theta_ref)

    @property
    def spent_usd(self) -> float:
        """What the check has cost, in USD."""
        return math.fsum(one.paid_usd for one in self.paid) + self.lost_usd

    @property
    def cost_ratio(self) -> Estimate:
        """Cost of a query with the configuration, relative to the reference.

        The interval is the normal one with 95%, paired by query; it decides nothing.
        """
        pairs = [(new.cost_usd, old.cost_usd) for new, old in self.pairs if old is not None]
        new, old = (math.fsum(costs) for costs in zip(*pairs, strict=True)) if pairs else (0.0, 0.0)
        if not old:
            return Estimate(None)
        ratio, n = new / old, len(pairs)
        if n < 2:
            return Estimate(ratio)
        spread = statistics.stdev(a - ratio * b for a, b in pairs)
        margin = _Z * spread * math.sqrt(n) / old
        return Estimate(ratio, max(0.0, ratio - margin), ratio + margin, "about 95% confidence")

    def disagreements(self) -> polars.DataFrame:
        """The queries on which both have different quality, the worst for the configuration first.

        The columns are those of `RunResult.disagreements`; the configuration is the choice there.
        """
        theirs: dict[int, list[Observation]] = {}
        for _, old in self.pairs:
            if old is not None:
                theirs.setdefault(old.query, []).append(old)
        means = [
            replace(
                several[0],
                quality=statistics.fmean(one.quality for one in several),
                cost_usd=statistics.fmean(one.cost_usd for one in several),
            )
            for several in theirs.values()
        ]
        new = [replace(new, theta=self.theta) for new, _ in self.pairs]
        of_queries = self.queries or None, self.answers, self.expected
        return disagreements_of(self.problem, self.theta, new, means, *of_queries)

    def lines(self) -> list[str]:
        """What there is to say, a line each."""
        Q = self.problem.num_queries
        told = [str(limit) for limit in self.limits]
        mean = [statistics.fmean(one.quality for one in side) for side in self._sides if side]
        costs = [statistics.fmean(one.cost_usd for one in side) for side in self._sides if side]
        names = "new", "reference"
        if self.pairs:
            both = ", ".join(f"{plain(m)} {name}" for m, name in zip(mean, names, strict=False))
            told.append(f"quality: {both}, on {len(self.pairs)} draws of {Q} queries")
            each = ", ".join(
                f"{per_thousand(c)} {name}" for c, name in zip(costs, names, strict=False)
            )
            ratio = self.cost_ratio
            times = ""
            if ratio.value is not None and ratio.lower is not None and ratio.upper is not None:
                low, best, high = (plain(x, 2) for x in (ratio.lower, ratio.value, ratio.upper))
                times = f": {best} times" + ("" if low == high else f" (about {low} to {high})")
            told.append(f"USD per 1,000 queries: {each}{times}")
        if failed := sum(one.failed is not None for one in self.paid):
            told.append(f"failed: {failed} calls, which count as quality 0")
        known = f", {self.num_known} answers known" if self.num_known else ""
        told.append(f"paid: {usd(self.spent_usd)} USD for {len(self.paid)} calls{known}")
        about = _ABOUT[self.certificate].format(Q=Q)
        if self.is_logged and self.certificate == "fresh":
            about += ", beside the reference's answers of the log"
        told.append(f"about {about}; wrong: at most {share(self.delta, 'up')}")
        return told

    def __str__(self) -> str:
        return "\n".join([self._head, *(f"  {line}" for line in self.lines())])

    def __repr__(self) -> str:
        return f"<CheckResult {self._head}>"

    def markdown(self, most: int = 10) -> str:
        """A comment for a pull request.

        Args:
            most: So many of the queries on which both differ are shown.
        """
        told = [f"### {self._head}", "", *(f"- {_escaped(line)}" for line in self.lines())]
        if all(old is not None for _, old in self.pairs):
            rows = self.disagreements().head(most).to_dicts()
            head = [name for name in _SHOWN if any(row.get(name) is not None for row in rows)]
            if rows:
                told += ["", f"| {' | '.join(_SHOWN[name] for name in head)} |"]
                told += [f"|{' --- |' * len(head)}"]
                told += [f"| {' | '.join(_cell(row[name]) for name in head)} |" for row in rows]
        return "\n".join(told) + "\n"

    def to_json(self) -> dict[str, Any]:
        """As in `check.json`."""
        return {
            "verdict": self.verdict,
            "configuration": self.configuration,
            "reference": self.reference,
            "limits": [
                {
                    "constraint": str(limit.constraint),
                    "kept": limit.kept,
                    "ratio" if limit.constraint.is_relative else "value": limit.ratio.value,
                    "interval": [limit.ratio.lower, limit.ratio.upper],
                }
                for limit in self.limits
            ],
            "certificate": self.certificate,
            "delta": self.delta,
            "num_pairs": len(self.pairs),
            "num_queries": self.problem.num_queries,
            "cost_ratio": self.cost_ratio.value,
            "stop_reason": self.stop_reason,
            "spent_usd": self.spent_usd,
            "num_calls": len(self.paid),
            "num_known": self.num_known,
        }

    @property
    def _sides(self) -> tuple[list[Observation], list[Observation]]:
        """The observations of both."""
        new = [new for new, _ in self.pairs]
        return new, [old for _, old in self.pairs if old is not None]

    @property
    def _head(self) -> str:
        changed = [
            f"{module}={llm}" if llm == old else f"{module}={llm} (was {old})"
            for (module, llm), old in zip(
                self.configuration.items(), self.reference.values(), strict=True
            )
        ]
        why = f" ({self.stop_reason})" if self.verdict == "undecided" else ""
        return f"{self.verdict}{why}: {', '.join(changed)}"


def limits_of(
    outcomes: Sequence[tuple[np.ndarray, np.ndarray | None]],
    constraints: Sequence[Constraint],
    delta: float,
    num_queries: int | None,
    with_interval: bool = False,
) -> list[Limit]:
    """What pairs say about constraints.

    It passes if all hold; each then holds but with probability delta. It fails if one does not,
    which of k is wrong with probability delta / k at most.

    Args:
        outcomes: Of both configurations, in the order of the draws, for each constraint; see
            `outcomes_of`.
        constraints: k of them, one for each outcome.
        delta: In (0, 1).
        num_queries: Q, if each query is drawn once and all of them decide; None if the draws are
            independent.
        with_interval: Whether to look for the ends of intervals too.
    """
    from scope_torch.bounds.paired import Outcomes  # its package imports gpytorch: seconds

    deltas, found = (delta, delta / len(constraints)), list[Limit]()
    for one, (new, old) in zip(constraints, outcomes, strict=True):
        keeps_low = one.kind == "<="
        both = Outcomes(new, old, one.low, one.high, keeps_low, num_queries)
        kept = both.verdict(one.value, *deltas)[0] if len(new) else None
        ratio = Estimate(None)
        if len(new) and with_interval:
            mean = float(new.mean())
            if old is not None:
                mean = mean / float(old.mean()) if old.any() else None
            most = _MOST_RATIO * max(1.0, one.value, mean or 0.0) if one.is_relative else one.high
            low, high = both.interval(*deltas, most)
            if one.is_relative:  # beyond the levels that were tried nothing is known
                low = None if low == one.low < 0 else low
                high = None if high == most else high
            ratio = Estimate(mean, low, high, f"each end: {level(delta)}")
        found.append(Limit(one, kept, ratio))
    return found


def outcomes_of(pairs: Sequence[Pair], limit: Constraint) -> tuple[np.ndarray, np.ndarray | None]:
    """The numbers that a constraint averages, in the outcome's unit: of both (float64).

    None in the place of the reference's if the bound is absolute.
    """
    import numpy as np

    new = np.array([limit.of(pair.new) for pair in pairs])
    if not limit.is_relative:
        return new, None
    return new, np.array([limit.of(p.reference) for p in pairs if p.reference is not None])


_SHOWN = {
    "query": "query",
    "input": "input",
    "expected": "expected",
    "answer_choice": "new answer",
    "answer_reference": "reference's answer",
    "quality_choice": "new",
    "quality_reference": "reference",
}


def _in_words(found: Estimate, shown: Callable[..., str]) -> tuple[str, str]:
    """A number, and its interval in brackets, rounded to the safe side; "" if that is unknown."""
    number = "unknown" if found.value is None else shown(found.value)
    low = None if found.lower is None else shown(found.lower, side="down")
    high = None if found.upper is None else shown(found.upper, side="up")
    if low is None and high is None:
        return number, ""
    if low is None or high is None:
        return number, f" (at most {high})" if low is None else f" (at least {low})"
    return number, f" ({low} to {high})"


def _signed(fraction: float, side: Side = "nearest") -> str:
    """A loss as a percentage with one decimal; below 0 it is a gain."""
    tenths = round(1000 * fraction, 6)
    rounded = {"nearest": round, "down": math.floor, "up": math.ceil}[side](tenths)
    return f"{rounded / 10:.1f}%"


def _cell(value: Any) -> str:
    text = plain(value) if isinstance(value, float) else str(value)
    text = " ".join(text.split())
    return _escaped(text if len(text) <= 80 else f"{text[:77]}...")


def _escaped(text: str) -> str:
    """Text in a cell of a Markdown table; HTML and tables of a stranger stay text."""
    for sign in "\\`*_{}[]<>|~#@!":
        text = text.replace(sign, f"\\{sign}" if sign not in "<>@" else _HTML[sign])
    return text


_HTML = {"<": "&lt;", ">": "&gt;", "@": "&#64;"}
