"""What speaks against the promise of a result, in one sentence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from scope_torch.constraints import COST, Constraint
from scope_torch.observation import History
from scope_torch.problem import SelectionProblem
from scope_torch.reference import REFERENCE_DELTA
from scope_torch.results.digits import level, plain, quality, share, threshold
from scope_torch.results.estimate import Evidence
from scope_torch.results.held_out import HeldOut
from scope_torch.results.metrics import OracleCurve
from scope_torch.search.optimizer import Recommendation

if TYPE_CHECKING:
    from scope_torch.bounds.repeats import Repeats


class Promised(Protocol):
    """A result, as far as a doubt needs it: a `RunResult`."""

    @property
    def problem(self) -> SelectionProblem:
        """What was searched."""
        ...

    @property
    def recommendation(self) -> Recommendation:
        """theta_out and its basis."""
        ...

    @property
    def history(self) -> History:
        """Its observations."""
        ...

    @property
    def report(self) -> Mapping[str, Any]:
        """Values that the method recorded."""
        ...

    @property
    def evidence(self) -> Evidence:
        """What is known of each configuration."""
        ...

    @property
    def certified(self) -> bool:
        """Whether theta_out is."""
        ...

    @property
    def held_out(self) -> HeldOut | None:
        """The comparison on held-out queries."""
        ...

    @property
    def varies(self) -> Repeats | None:
        """What the reference's second answers say."""
        ...

    @property
    def curve(self) -> OracleCurve | None:
        """True cost and quality of theta_out, if they are known."""
        ...

    @property
    def left_out(self) -> Mapping[str, int]:
        """Number of runs by module that left it out."""
        ...


def doubt_of(result: Promised) -> str:
    """The sentence, or one for each doubt; "" if nothing speaks against the promise.

    - Held-out queries: the interval of quality above the threshold lies below 0, or that of the
      saving, or of what another constraint leaves.
    - Answers changed when they were asked for again, and the certificate assumes that none does.
    - All calls of this search with one of its LLMs failed: its answers are of an earlier search.
    - Runs of theta_out left out a module that the reference asked, or cost nothing.
    - The reference is kept, and breaks a constraint itself, or answered too few queries to tell.

    Args:
        result: A `RunResult`.
    """
    problem = result.problem
    if result.recommendation.theta == problem.theta_ref:
        return _of_reference(problem)
    of_calls = *_of_failures(result), _of_calls(result)
    doubts = *_of_held_out(problem, result.held_out), _of_answers(result), *of_calls
    return "; ".join(filter(None, doubts))


def not_asked(left_out: Mapping[str, int]) -> str:
    """Which modules runs have left out, see `scope_torch.runs.asked`; "" if none."""
    parts = [f"{m} was not asked in {n:,} run{'s' * (n > 1)}" for m, n in left_out.items()]
    return f"{', '.join(parts)} (a cache?)" if parts else ""


def confidence(delta: float, problem: SelectionProblem) -> str:
    """Of a certificate, if it is wrong with probability `delta` at the problem's threshold."""
    delta += REFERENCE_DELTA if sampled(problem) else 0.0
    return f" with {level(delta)} confidence"


def sampled(problem: SelectionProblem) -> str:
    """What a threshold rests on if it is a share of what a sample bounds; else ""."""
    if problem.reference_queries is None or problem.epsilon is None:
        return ""
    loss, most = share(problem.epsilon, "up"), plain(problem.most_reference_quality, side="up")
    return (
        f"; at least {threshold(problem.s_0)}, at most {loss} below the "
        f"reference, which is at most {most} by {problem.reference_queries:,} queries"
    )


def _of_held_out(problem: SelectionProblem, held_out: HeldOut | None) -> Iterator[str]:
    """What held-out queries say against the choice."""
    if held_out is None:
        return
    on = f"but on {held_out.num_queries} held-out queries"
    yield from (_of_cost if problem.objective == "cost" else _of_quality)(problem, held_out, on)
    if broken := [f"{limit} ({_average(limit, y)})" for limit, y in held_out.broken(problem)]:
        yield f"{on} it breaks {' and '.join(broken)}"


def _of_quality(problem: SelectionProblem, held_out: HeldOut, on: str) -> Iterator[str]:
    """Whether a choice for its quality has less of it than a reference that might be chosen."""
    if not _of_reference(problem) and (held_out.difference.upper or 0.0) < 0:
        averages = f"{quality(held_out.quality)} against {quality(held_out.reference_quality)}"
        yield f"{on} its quality is below the reference's: {averages}"


def _of_cost(problem: SelectionProblem, held_out: HeldOut, on: str) -> Iterator[str]:
    """Whether a choice for its cost is not good enough, or costs more than the reference."""
    if (excess := held_out.excess(problem)).upper is not None and excess.upper < 0:
        averages = f"{quality(held_out.quality)} against {quality(held_out.reference_quality)}"
        allowed = f"at least {threshold(problem.s_0)} was promised"
        if problem.relative_loss is not None:
            allowed = f"a loss of {share(problem.relative_loss)} was allowed"
        yield (
            f"but {held_out.num_queries} held-out queries say otherwise: quality {averages}, and "
            f"{allowed}"
        )
    if held_out.is_dearer(problem):
        yield (
            f"{on} it costs more than the reference: {plain(1000 * held_out.choice_usd)} instead "
            f"of {plain(1000 * held_out.reference_usd)} USD per 1,000 queries"
        )


def _of_answers(result: Promised) -> str:
    """Whether a certificate took answers for fixed that are not."""
    varies, report = result.varies, result.report
    if not result.certified or report.get("flips") or report.get("certificate") == "population":
        return ""
    changed, asked = result.evidence.answers.again
    if varies is not None and varies.changed:  # select asks the reference again
        changed, asked = varies.changed, varies.asked
    if not changed:
        return ""
    return (
        f"but {changed} of {asked} answers changed when they were asked for again, "
        "which this certificate does not allow for"
    )


def _of_failures(result: Promised) -> Iterator[str]:
    """LLMs of theta_out that do not work today."""
    theta, problem = result.recommendation.theta, result.problem
    for module, (name, llm) in enumerate(problem.names(theta).items()):
        with_it = [one for one in result.history if one.theta[module] == theta[module]]
        if with_it and all(one.failed == "app" for one in with_it):
            told = f"all {len(with_it)} calls" if len(with_it) > 1 else "the only call"
            yield f"but {told} of this search with {name}={llm} failed; older answers are known"


def _of_calls(result: Promised) -> str:
    """Whether something else may have answered in the place of the LLMs."""
    runs = result.evidence.runs(result.recommendation.theta)
    asked, modules = [one.modules_asked for one in runs], result.problem.modules
    without = {
        m: [modules.index(m) in of for of in asked if of is not None] for m in result.left_out
    }
    if told := not_asked({m: of.count(False) for m, of in without.items() if False in of}):
        return (
            f"but for the choice {told}, so its cost and quality may be those of other LLMs: "
            "switch it off, let the app return all tokens, or say "
            f"optional_modules={list(result.left_out)}"
        )
    later = [one for one in runs if one.replicate]
    held_out = [] if result.held_out is None else result.held_out.choice
    for name, of in (("", runs), ("later ", later), ("held-out ", held_out)):
        is_free = of and not any(one.cost_usd or one.modules_asked for one in of)
        if is_free and result.curve is None:  # a table or a simulation knows what it says
            return (
                f"but its {name}runs cost nothing (a cache?): if its LLMs are free, let the app "
                "return tokens, which show that they were asked"
            )
    return ""


def _of_reference(problem: SelectionProblem) -> str:
    """What theta_0 breaks itself."""
    n, Q = problem.reference_queries, problem.num_queries
    on = "on average" if n is None else f"on {n} of {Q} queries"
    broken = [
        f"{limit} ({_average(limit, problem.reference_outcomes[limit.name], on)})"
        for limit, above in zip(problem.limits[1:], problem.reference_violations(), strict=True)
        if above > 0
    ]
    cost_usd, first = problem.reference_averages[COST], problem.limits[0]
    is_known = not first.is_cap or problem.reference_answers or COST in problem.reference_outcomes
    if problem.objective == "quality" and is_known and not first.holds(cost_usd):
        broken.insert(0, f"{first} ({plain(cost_usd)} on average)")
    by_number = problem.objective == "cost" and problem.epsilon is None
    if by_number and not first.holds(problem.reference_quality):
        broken.insert(0, f"{first} ({quality(problem.reference_quality)} {on})")
    if n is not None and problem.epsilon is None and not broken:
        limits = " and ".join(map(str, problem.limits))
        return (
            f"but whether the reference keeps {limits} is not known: it has answered {n} of {Q} "
            "queries"
        )
    return f"but the reference itself breaks {' and '.join(broken)}" if broken else ""


def _average(limit: Constraint, average: float, on: str = "on average") -> str:
    """An average of what counts for a constraint."""
    if not limit.is_share:
        return f"{plain(average)} {on}"
    return f"{share(average)} of runs" + f" {on}" * (on != "on average")
