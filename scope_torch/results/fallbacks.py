"""What stands in for the choice where one of its LLMs fails: other certified configurations.

| basis | of a configuration |
| --- | --- |
| `certified` | its test was passed: it was theta_out, or its betting sequence says so |
| `observed` | it has answered all queries, well enough, and answers do not change |
| `reference` | theta_0, unless it is known to break a constraint |

All of them are certified at once with the probability of the search, see `scope_torch.search.front`
and `scope_torch.search.population`. What was only `accepted`, by bounds of the model, is left out,
and if the certificate is about tomorrow's queries, also what was only `observed` on today's. So is
what has another prompt, or another factor that no request can have: the application would keep its
own.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from scope_torch.constraints import QUALITY
from scope_torch.errors import InputError
from scope_torch.factors import LLM, own_factors
from scope_torch.problem import SelectionProblem
from scope_torch.results.estimate import Evidence
from scope_torch.results.saving import holds_fallbacks
from scope_torch.results.table import once_out
from scope_torch.search.failing import uses_any
from scope_torch.search.optimizer import Recommendation

logger = logging.getLogger(__name__)

Theta = tuple[int, ...]


class Fallback(NamedTuple):
    """A configuration that may stand in for the choice.

    Attributes:
        models: The LLM of each module.
        basis: See the table of this module.
        cost_usd: Average cost of a query in USD.
        quality: Average quality, in [0, 1].
    """

    models: dict[str, str]
    basis: str
    cost_usd: float
    quality: float


def fallbacks_of(
    evidence: Evidence, out: Recommendation, number: int
) -> tuple[list[Fallback], dict[str, int]]:
    """For each module the cheapest certified configuration with each of `number` other LLMs.

    An LLM that fails in one module often fails in all, so configurations that do without the chosen
    LLM of the module altogether come before the others.

    Args:
        evidence: Of the run.
        out: theta_out.
        number: At least 1.

    Returns:
        The configurations, the cheapest first (the best, if quality is the objective), and by
        module how many LLMs fewer than asked have one.

    Examples:
        >>> from scope_torch import make_scope, run
        >>> from scope_torch.tasks.synthetic import synthetic_task
        >>> problem, evaluator, _ = synthetic_task(num_queries=20)
        >>> result = run(problem, make_scope(problem, base="nano", seed=0), evaluator, 0.1)
        >>> found, missing = fallbacks_of(result.evidence, result.recommendation, 1)
        >>> [(one.models, one.basis) for one in found]
        [({'module_1': 'frontier', 'module_2': 'frontier'}, 'reference')]
        >>> missing
        {}
    """
    kept, missing = list[Fallback](), dict[str, int]()
    chosen = evidence.problem.names(out.theta)
    own = {module: own_factors(choice) for module, choice in chosen.items()}
    found = [
        one
        for one in _certified(evidence, out)
        if {module: own_factors(choice) for module, choice in one.models.items()} == own
    ]
    llms = [(one, _llms(one.models)) for one in found]
    for module, llm in _llms(chosen).items():
        with_each: dict[str, Fallback] = {}
        for one, others in sorted(llms, key=lambda pair: llm in pair[1].values()):
            if others[module] != llm:
                with_each.setdefault(others[module], one)
        kept += list(with_each.values())[:number]
        if len(with_each) < number:
            missing[module] = number - len(with_each)
    return [one for one in found if one in kept], missing


def _llms(models: Mapping[str, str]) -> dict[str, str]:
    """The LLM of each module; where it fails, it does so with every effort and prompt."""
    return {module: LLM.parse(choice).llm for module, choice in models.items()}


def with_fallbacks(
    path: Path | str, evidence: Evidence, out: Recommendation, number: int
) -> dict[str, Any]:
    """Entries of a saved choice: `fallbacks`, and `fallbacks_missing` if fewer are certified.

    Args:
        path: Where they go.
        evidence: Of the run.
        out: theta_out.
        number: See `fallbacks_of`; 0 for no entries.

    Raises:
        InputError: If the number is no whole one, or the form of the file holds no fallbacks.
    """
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise InputError(f"fallbacks={number!r} must be a whole number, at least 0")
    if not number:
        return {}
    if not holds_fallbacks(path):
        raise InputError(
            f"{Path(path).name!r} cannot hold fallbacks, which are whole configurations: LiteLLM "
            "and variables know one module at a time; save a *.json or *.yaml for scope-torch serve"
        )
    found, missing = fallbacks_of(evidence, out, number)
    if missing:
        fewer = ", ".join(f"{number - n} in {module}" for module, n in missing.items())
        logger.warning(
            "fallbacks=%d: other LLMs are certified for fewer, %s; a longer search may find more",
            number, fewer,
        )  # fmt: skip
    entries = {"fallbacks": [one._asdict() for one in found]}
    return {**entries, **({"fallbacks_missing": missing} if missing else {})}


def _certified(evidence: Evidence, out: Recommendation) -> list[Fallback]:
    """All configurations that are certified but theta_out, the best first."""
    problem, passed = evidence.problem, _by_sequences(evidence)
    if out.basis == "certified":
        passed |= once_out(evidence)
    found: list[tuple[float, Fallback]] = []
    for theta in dict.fromkeys([problem.theta_ref, *(theta for theta, _ in evidence.answers)]):
        basis = None if theta == out.theta else _basis(evidence, theta, passed)
        cost, quality = evidence.cost_usd(theta).value, evidence.quality(theta).value
        if basis is not None and cost is not None and quality is not None:
            one = Fallback(problem.names(theta), basis, cost, quality)
            found.append((problem.loss(cost, quality), one))
    return [one for _, one in sorted(found, key=lambda pair: pair[0])]


def _basis(evidence: Evidence, theta: Theta, passed: set[Theta]) -> str | None:
    """What a configuration rests on; None if it is not certified."""
    problem, report = evidence.problem, evidence.report
    if theta == problem.theta_ref:
        return "reference" if _reference_holds(problem) else None
    if uses_any(problem.names(theta), report.get("dropped", {})):
        return None  # an LLM that worked may have been retired since
    if not problem.is_allowed(theta):
        return None  # an earlier search may have known another rule
    about_tomorrow = report.get("certificate") == "population"
    if evidence.is_known(theta) and not about_tomorrow:
        return "observed" if evidence.is_feasible(theta) else None
    return "certified" if theta in passed else None


def _by_sequences(evidence: Evidence) -> set[Theta]:
    """The candidates whose betting sequences certify s_0, also those that cost too much."""
    problem, report, found = evidence.problem, evidence.report, set[Theta]()
    if report.get("certificate") != "sequence" or evidence.answers_vary or problem.others:
        return found
    from scope_torch.bounds.betting import BettingSequence, share_of_delta  # slow to import

    for k, (theta, qualities) in enumerate(evidence.turns, 1):
        share = share_of_delta(k, report["delta"])
        sequence = BettingSequence(problem.num_queries, problem.s_0, share)
        if sequence.certifies(qualities):
            found.add(theta)
    return found


def _reference_holds(problem: SelectionProblem) -> bool:
    """Whether theta_0 breaks no constraint, as far as that is known.

    Its quality is what epsilon is relative to; where it is known by a sample, a least quality may
    be above it.
    """
    known = dict(problem.reference_averages)
    if problem.epsilon is not None:
        del known[QUALITY]
    return all(limit.holds(known[limit.name]) for limit in problem.limits if limit.name in known)
