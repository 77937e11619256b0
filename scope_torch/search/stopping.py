"""When a search has nothing left to do, and what is not worth choosing.

Five rules beyond alg:scope-main, all off with `gap_tolerance=None` but that of free candidates:

- **Skipping.** An iteration whose candidate could not improve on theta_out (L_c > u_out) would end
  after one observation. It is skipped: minima are taken over L_c <= u_out and without theta_out.
- **Gap.** u_out - min{L_c : L_g <= 0} bounds c(theta_out) - c(theta_star) while the bounds hold.
  The search stops once the gap is small enough.
- **Free candidates.** A candidate that costs nothing and is observed on every query could be
  chosen again for ever, because no budget ends that. If it is theta_out, nothing costs less: the
  bounds on its cost stay above 0, so they would let all others be tried that are free.
- **Own answers.** U_c is the model's. Where most costs are 0 and few are large, it can be far too
  low after some answers. So theta_cand is theta_out only while its own answers cost less than
  theta_0's on the same queries.
- **Ties.** A candidate whose own answers cost what theta_out's do, and which saves nothing in its
  bounds, is given up for good, but counts for the gap. Off where answers vary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from scope_torch.errors import InputError
from scope_torch.observation import Observation
from scope_torch.problem import SelectionProblem
from scope_torch.search.averages import AllAverages

NOTHING_LEFT = "no other configuration can improve on theta_out in these bounds"
NOTHING_FOUND = "none found that can improve on theta_out in these bounds within max_nodes"
GAP_CLOSED = "optimality gap within gap_tolerance"
NO_LONGER_PAYS = "no candidate is expected to save more than finding out costs"
LEAST_GAIN = 1e-3  # in units of quality
NEARLY = 1 - 1e-4  # of u_out
_ROUNDING = 1e-12
FREE_CANDIDATE = "the best candidate is free and observed on every query"


class Stopping:
    """Skipping, the optimality gap, and the stop for free candidates.

    Args:
        gap_tolerance: Stop once the gap is at most this fraction of u_out. None: to the letter of
            alg:scope-main, which neither skips an iteration nor stops before the budget is spent.
        least_gain: A candidate must be able to improve on u_out by this much, in its unit.
            Qualities are often equal: without it, the equal ones would be asked again for ever.
        theta_ref: theta_0, which may always be chosen.
        reference_usd: c_q(theta_0) in USD; None: the rule of own answers is off.
        least_u_out: The first U_out is at least this; tuned half-widths may put U_{c,t_0}(theta_0)
            below c(theta_0).

    Raises:
        InputError: If the tolerance is negative or not a number.
    """

    def __init__(
        self,
        gap_tolerance: float | None = 0.0,
        least_gain: float = 0.0,
        theta_ref: tuple[int, ...] = (),
        reference_usd: Sequence[float] | None = None,
        least_u_out: float = -math.inf,
    ) -> None:
        if gap_tolerance is not None and not gap_tolerance >= 0:
            raise InputError(f"gap_tolerance={gap_tolerance} must be at least 0, or None")
        self.gap_tolerance, self._least_gain = gap_tolerance, least_gain
        self.least_u_out = least_u_out
        self._least_c: float | None = None
        self._charged: set[tuple[int, ...]] = set()
        self._theta_ref, self._reference_usd = theta_ref, reference_usd
        self._own = AllAverages(len(reference_usd or ()))
        self._theirs: dict[tuple[int, ...], float] = {}  # USD of theta_0 on the queries of each
        self._left_c = math.inf

    @property
    def skips(self) -> bool:
        """Whether iterations that cannot improve on theta_out are skipped."""
        return self.gap_tolerance is not None

    def record(self, observation: Observation) -> None:
        """Notes what the configuration has cost, and theta_0 on the same query."""
        if observation.cost_usd > 0:
            self._charged.add(observation.theta)
        if self._reference_usd is not None:
            theta, query = observation.theta, observation.query
            if query not in self._own[theta]:
                theirs = self._theirs.get(theta, 0.0)
                self._theirs[theta] = theirs + self._reference_usd[query]
            self._own.add(observation)

    def improvable(self, u_out: float, theta_out: int) -> tuple[float, int | None]:
        """What a candidate must satisfy to be worth an iteration (skipping).

        Args:
            u_out: In USD.
            theta_out: Flat index.

        Returns:
            The largest L_c in USD, and the flat index of a configuration that does not count.
        """
        return (u_out - self._least_gain, theta_out) if self.skips else (math.inf, None)

    def select(self, least_c: float) -> None:
        """Takes in min{L_c : L_g <= 0} in USD at a selection."""
        self._least_c = least_c

    def replaced(self, lower_c: float) -> None:
        """Takes in L_c in USD of a configuration that was theta_out and may be theta_star."""
        if self._least_c is not None:
            self._least_c = min(self._least_c, lower_c)

    def left_out(self, lower_c: float) -> None:
        """Takes in L_c in USD of a configuration that is not chosen any more, see `holes.py`."""
        self._left_c = min(self._left_c, lower_c)

    def gap(self, u_out: float | None) -> float | None:
        """Bound on c(theta_out) - c(theta_star) in USD; None before the first selection."""
        if self._least_c is None or u_out is None:
            return None
        return max(0.0, u_out - min(self._least_c, self._left_c))

    def is_closed(self, u_out: float) -> bool:
        """Whether the gap is within the tolerance."""
        gap = self.gap(u_out)
        if self.gap_tolerance is None or gap is None:
            return False
        return gap <= self.gap_tolerance * u_out

    def is_free(self, theta: tuple[int, ...]) -> bool:
        """Whether no observation of `theta` has cost anything so far."""
        return theta not in self._charged

    def is_least(self, theta: tuple[int, ...]) -> bool:
        """Whether `theta` has answered all queries for nothing, so that no other costs less."""
        knows = self._reference_usd is not None and self._own[theta].num_left == 0
        return knows and self.is_free(theta)

    def is_dearer(self, theta: tuple[int, ...]) -> bool:
        """Whether the answers of `theta` have cost no less than theta_0's on the same queries."""
        if self._reference_usd is None or theta == self._theta_ref:
            return False
        own = self._own[theta]
        number = len(self._reference_usd) - own.num_left
        return number == 0 or own.cost_usd * number >= self._theirs[theta] * (1 - _ROUNDING)

    def is_tied(
        self, theta: tuple[int, ...], theta_out: tuple[int, ...], lower_c: float, u_out: float
    ) -> bool:
        """Whether `theta` has cost what theta_out has, and saves nothing in its bounds.

        Prices by call make such ties. L_c stays a hair below u_out up to the last query, so the
        bounds alone never tell.

        Args:
            theta: theta_cand.
            theta_out: Which it would replace.
            lower_c: L_c of theta_cand in USD.
            u_out: In USD.
        """
        if self._reference_usd is None or theta == theta_out or lower_c < NEARLY * u_out:
            return False
        own, out = self._own[theta], self._own[theta_out]
        if theta_out == self._theta_ref:
            usd = self._theirs.get(theta, 0.0)
        elif out.num_left:  # its average quality is not known, so it may be given back
            return False
        else:
            usd = out.usd_on(own)
        return math.isclose(own.usd_on(own), usd, rel_tol=_ROUNDING)

    def is_beaten(self, theta: tuple[int, ...], theta_out: tuple[int, ...]) -> bool:
        """Whether both have answered all queries, and `theta` has cost no less than theta_out."""
        if self._reference_usd is None or theta == theta_out:
            return False
        own, out = self._own[theta], self._own[theta_out]
        return own.num_left == out.num_left == 0 and own.cost_usd >= out.cost_usd * (1 - _ROUNDING)


def stopping_of(
    problem: SelectionProblem, gap_tolerance: float | None, u_out_floor: bool = True
) -> Stopping:
    """The rules for a problem: a quality that is better by less than 0.001 is not worth a query.

    Args:
        problem: What is searched.
        gap_tolerance: See `Stopping`.
        u_out_floor: Whether U_out begins at c(theta_0) at least.
    """
    floor = problem.first_u_out if u_out_floor else -math.inf
    if problem.objective == "quality":
        return Stopping(gap_tolerance, LEAST_GAIN, least_u_out=floor)
    if gap_tolerance is None:
        return Stopping(None, least_u_out=floor)
    costs = [problem.reference_cost_usd] * problem.num_queries
    if problem.reference_answers is not None:
        costs = [usd for usd, _ in problem.reference_answers]
    return Stopping(gap_tolerance, 0.0, problem.theta_ref, costs, floor)
