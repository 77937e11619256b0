"""Which modules asked an LLM in a run, and which runs left one out that the reference's asked.

A run leaves a module out because its LLMs need it less often, or because a cache answered in its
place; then its cost and its quality are those of another LLM. Nobody can tell from outside, so such
runs are counted and told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from scope_torch.observation import Observation


def modules_asked(observation: Observation) -> frozenset[int] | None:
    """The numbers of the modules that asked an LLM in a run; None if it is not known.

    Where calls were not counted, a module that has used tokens or cost something has asked.

    Examples:
        >>> modules_asked(Observation((0, 0), 0, 0.5, 1.0, module_tokens=((9, 1), (0, 0))))
        frozenset({0})
        >>> modules_asked(Observation((0, 0), 0, 0.5, 1.0)) is None
        True
    """
    if observation.module_calls is not None:
        signs: Iterable[object] = observation.module_calls
    elif observation.module_tokens is not None:
        costs = observation.module_cost_usd or [0.0] * len(observation.module_tokens)
        signs = (
            sum(used) + usd for used, usd in zip(observation.module_tokens, costs, strict=True)
        )
    else:
        return None
    return frozenset(number for number, sign in enumerate(signs) if sign)


def left_out(
    modules: Sequence[str],
    reference: Iterable[Observation],
    runs: Iterable[Observation],
    optional: Iterable[str] = (),
) -> dict[str, int]:
    """Number of runs, by module, that left it out though the reference's run of the query asked it.

    A module that the reference leaves out on a query may be left out by others too, unless they
    never ask it.

    Args:
        modules: Names of the modules.
        reference: theta_0, once on every query.
        runs: Of other configurations, on the same queries.
        optional: Modules that may be left out.

    Examples:
        >>> both, one = ((9, 1), (9, 1)), ((0, 0), (9, 1))
        >>> reference = [Observation((1, 1), 0, 0.5, 1.0, module_tokens=both)]
        >>> runs = [Observation((0, 1), 0, 0.1, 1.0, module_tokens=one)]
        >>> left_out(["plan", "solve"], reference, runs)
        {'plan': 1}
    """
    of_query = {o.query: asked for o in reference if (asked := modules_asked(o)) is not None}
    of_runs = [(run.query, asked) for run in runs if (asked := modules_asked(run)) is not None]
    always = frozenset(range(len(modules))).intersection(*of_query.values())
    by_others = frozenset[int]().union(*(asked for _, asked in of_runs))
    names = set(optional)
    must = {m for m, name in enumerate(modules) if name not in names} - (by_others - always)
    number_of = Counter[int]()
    for query, asked in of_runs:
        number_of.update(must & of_query.get(query, frozenset()) - asked)
    return {modules[module]: number_of[module] for module in sorted(number_of)}
