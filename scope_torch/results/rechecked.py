"""What has become of a choice: an alarm, or none."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from scope_torch.constraints import Constraint
from scope_torch.results.checked import Pair, outcomes_of
from scope_torch.results.digits import percent, plain, share, usd

if TYPE_CHECKING:
    import numpy as np

_RECENT = 200  # draws


class Alarm(NamedTuple):
    """A constraint does not hold any more.

    Attributes:
        draw: Number of the draw at which that could first be said, from 0 on.
        since: Number of the draw with which it most likely began.
        constraint: The one that tells most.
    """

    draw: int
    since: int
    constraint: Constraint


@dataclass(frozen=True, repr=False)
class RecheckResult:
    """All draws so far, and whether a constraint still holds.

    Args:
        configuration: The LLM of each module.
        limits: The constraints.
        pairs: All draws so far, in their order.
        days: The day of each of them, such as "2026-11-26".
        false_alarm_every: While all constraints hold, an alarm comes after so many draws on
            average, at least.
        alarm: None if there is none.
        evidence: The largest value of the detector so far, as a share of what is an alarm.
        num_new: How many draws were added now.
        spent_usd: What was paid since the last report, in USD; also by a look that was stopped.
        prices: By LLM the prices of the first day and of today, USD per million tokens in and out,
            where they differ.
        retired: LLMs that are retired, because of which new draws failed: by `module=LLM` a word of
            the provider's answer.
        total_usd: What was paid in all, in USD.
        is_logged: Whether the reference has one answer to each query, that of a log.
        left_out: How many logged traces are no draws, by reason.
        num_unread: How many rows of the log could not be read.
        num_newer: How many of the traces that were left out are later than the last draw; 0 if that
            may be chance, as where grades are of a sample.
        num_undated: How many traces and rows were left out that may be later: they tell no time.
    """

    configuration: Mapping[str, str]
    limits: Sequence[Constraint]
    pairs: Sequence[Pair]
    days: Sequence[str]
    false_alarm_every: int
    alarm: Alarm | None
    evidence: float
    num_new: int
    spent_usd: float = 0.0
    prices: Mapping[str, tuple[tuple[float, float], tuple[float, float]]] | None = None
    retired: Mapping[str, str] = field(default_factory=dict, hash=False)
    total_usd: float = 0.0
    is_logged: bool = False
    left_out: Mapping[str, int] = field(default_factory=dict, hash=False)
    num_unread: int = 0
    num_newer: int = 0
    num_undated: int = 0

    @property
    def exit_status(self) -> int:
        """Of `scope-torch recheck`.

        1 for an alarm or an LLM that is retired; else 3 if logged traces were left out that are, or
        may be, newer than all draws: nothing is known of the choice since then; else 0.
        """
        if self.alarm is not None or self.retired:
            return 1
        return 3 if self.num_newer or self.num_undated else 0

    @property
    def num_failed(self) -> int:
        """How many of the new draws failed; they have quality 0."""
        new = self.pairs[len(self.pairs) - self.num_new :]
        return sum(any(one is not None and one.failed is not None for one in pair) for pair in new)

    def __str__(self) -> str:
        return "\n".join([self._head, *(f"  {line}" for line in self.lines())])

    def __repr__(self) -> str:
        return f"<RecheckResult {self._head}>"

    @property
    def _head(self) -> str:
        choice = ", ".join(f"{module}={llm}" for module, llm in self.configuration.items())
        if self.exit_status == 1:
            return f"ALARM: {choice}"
        told = [_several(self.num_newer, "newer trace")] * (self.num_newer > 0)
        if (undated := self.num_undated) > 0:
            told.append(f"{_several(undated, 'trace')} or row{'s' * (undated != 1)} without a time")
        but = f", but {' and '.join(told)} left out" if told else ""
        return f"no alarm{but}: {choice}"

    def lines(self) -> list[str]:
        """What there is to say, a line each."""
        told: list[str] = []
        number, days = len(self.pairs), len(set(self.days))
        for llm, said in self.retired.items():
            told.append(f"{llm} is retired: its provider answers {said}")
        if (alarm := self.alarm) is not None:
            first, since = self.days[alarm.draw], self.days[alarm.since]
            beside = ", beside the reference's answers of the log" * self.is_logged
            told.append(
                f"{alarm.constraint} does not hold{beside}: said on {first}, most likely since "
                f"{since}"
            )
        for limit in self.limits if number else ():
            parts = {f" in {number:,} draws": slice(None)}
            if alarm is not None and alarm.since:
                parts = {" before": slice(alarm.since), " since": slice(alarm.since, None)}
            elif number > _RECENT:
                parts[f" in the last {_RECENT}"] = slice(-_RECENT, None)
            shown = [f"{self._average(limit, part)}{name}" for name, part in parts.items()]
            told.append(f"{limit}: {', '.join(shown)}")
        false, evidence = min(1.0, number / self.false_alarm_every), percent(self.evidence)
        told.append(
            f"{number:,} draws on {days} day{'s' * (days != 1)}, {self.num_new} of them new; "
            f"evidence {evidence} of an alarm, a false one so far: at most {share(false, 'up')}"
        )
        for why, cut in self.left_out.items():
            told.append(f"left out: {_several(cut, 'trace')} {why}")
        if unread := self.num_unread:
            told.append(f"not read: {_several(unread, 'row')}; scope-torch import names the first")
        if failed := self.num_failed:
            told.append(f"failed: {failed} of {self.num_new} new draws, which count as quality 0")
        told.append(f"paid: {usd(self.spent_usd)} USD")
        for llm, (old, new) in (self.prices or {}).items():
            was, now = (", ".join(map(plain, both)) for both in (old, new))
            told.append(f"price of {llm}: {now} USD per million tokens (in, out), was {was}")
        return told

    def _average(self, limit: Constraint, part: slice) -> str:
        new, old = outcomes_of(self.pairs[part], limit)
        if old is None:
            mean = float(new.mean())
            return f"{share(mean)} of runs" if limit.is_share else plain(mean)
        ratio = plain(float(new.mean()) / float(old.mean())) if old.any() else "unknown"
        return f"{ratio} times the reference{' in the log' * self.is_logged}"

    def to_json(self) -> dict[str, Any]:
        """As in `recheck.json`."""
        alarm = self.alarm
        return {
            "alarm": None
            if alarm is None
            else {
                "constraint": str(alarm.constraint),
                "day": self.days[alarm.draw],
                "since": self.days[alarm.since],
            },
            "configuration": dict(self.configuration),
            "limits": [str(limit) for limit in self.limits],
            "num_draws": len(self.pairs),
            "num_new": self.num_new,
            "num_failed": self.num_failed,
            "retired": dict(self.retired),
            "false_alarm_every": self.false_alarm_every,
            "evidence": self.evidence,
            "spent_usd": self.spent_usd,
            "total_usd": self.total_usd,
            "prices": self.prices or {},
            "left_out": dict(self.left_out),
            "num_unread": self.num_unread,
            "num_newer": self.num_newer,
            "num_undated": self.num_undated,
        }


def _several(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


def alarm_of(
    pairs: Sequence[Pair], limits: Sequence[Constraint], false_alarm_every: int
) -> tuple[Alarm | None, float]:
    """The alarm, if there is one, and the largest value of the detector as a share of it.

    Each constraint has a detector, and their average is one too.

    Args:
        pairs: In the order of the draws.
        limits: One for each outcome.
        false_alarm_every: C.
    """
    import numpy as np

    from scope_torch.bounds.drift import changed_at, log_detector
    from scope_torch.bounds.paired import Outcomes

    if not pairs:
        return None, 0.0
    bets: list[tuple[np.ndarray, float]] = []
    for limit in limits:
        new, old = outcomes_of(pairs, limit)
        both = Outcomes(new, old, limit.low, limit.high, limit.kind == "<=")
        differences, worst = both.bet(limit.value, kept=False)
        bets.append((differences, max(worst, 1e-9 * (limit.high - limit.low))))
    of_limits = np.array([log_detector(*bet) for bet in bets])
    found = np.logaddexp.reduce(of_limits, 0) - math.log(len(limits)) - math.log(false_alarm_every)
    evidence = float(np.exp(min(0.0, found.max())))
    reached = np.flatnonzero(found >= 0)
    if not len(reached):
        return None, evidence
    draw = int(reached[0])
    most = int(of_limits[:, draw].argmax())
    differences, worst = bets[most]
    return Alarm(draw, changed_at(differences[: draw + 1], worst), limits[most]), 1.0
