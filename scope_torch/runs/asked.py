"""Which modules asked an LLM in a run, and which runs left one out that the reference's asked.

A run leaves a module out because its LLMs need it less often, or because a cache answered in its
place; then its cost and its quality are those of another LLM. Nobody can tell from outside, so such
runs are counted and told. A run that asked nobody at all is refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from scope_torch.errors import InputError
from scope_torch.observation import Observation
from scope_torch.problem import SelectionProblem

# The mends, where a run is no observation.
CACHE_OFF = (
    "switch the cache of its client off: dspy.LM(cache=False), set_llm_cache(None) of LangChain, "
    "litellm.cache = None, functools.cache, diskcache, ..."
)
ANEW = "begin with another run_dir, because earlier runs may be recorded wrongly"


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
    number_of = Counter[int]()
    for _, missing in _without(modules, reference, runs, optional):
        number_of.update(missing)
    return {modules[module]: number_of[module] for module in sorted(number_of)}


def silent(
    modules: Sequence[str], runs: Iterable[Observation], optional: Iterable[str] = ()
) -> list[str]:
    """Modules that asked nobody in any run, although others did: perhaps the app tells no tokens.

    Args:
        modules: Names of the modules.
        runs: All runs, those of theta_0 too.
        optional: Modules that may be left out.

    Examples:
        >>> run = Observation((0, 1), 0, 0.1, 1.0, module_tokens=((0, 0), (9, 1)))
        >>> silent(["plan", "solve"], [run])
        ['plan']
    """
    asked = frozenset[int]().union(*(of for one in runs if (of := one.modules_asked)))
    names = set(optional)
    return [m for i, m in enumerate(modules) if asked and i not in asked and m not in names]


def replayed(
    modules: Sequence[str],
    first: Sequence[Observation],
    second: Sequence[Observation],
    optional: Iterable[str] = (),
) -> list[Observation]:
    """Second runs of a configuration that leave out a module, or cost nothing: those of a cache.

    Args:
        modules: Names of the modules.
        first: One run on every query of `second`, and perhaps on others.
        second: The second runs.
        optional: Modules that may be left out.
    """
    of_query = {one.query: one for one in first}
    found = [run for run, missing in _without(modules, first, second, optional) if missing]
    for run in second:
        before, now = of_query[run.query].modules_asked, run.modules_asked
        if before is None or now is None:
            before, now = of_query[run.query].cost_usd, run.cost_usd
        if before and not now and run not in found:
            found.append(run)
    return found


def _without(
    modules: Sequence[str],
    reference: Iterable[Observation],
    runs: Iterable[Observation],
    optional: Iterable[str],
) -> Iterator[tuple[Observation, frozenset[int]]]:
    """Each run of which it is known, with the modules that it left out, see `left_out`."""
    of_query = {o.query: asked for o in reference if (asked := o.modules_asked) is not None}
    of_runs = [(run, asked) for run in runs if (asked := run.modules_asked) is not None]
    always = frozenset(range(len(modules))).intersection(*of_query.values())
    by_others = frozenset[int]().union(*(asked for _, asked in of_runs))
    names = set(optional)
    must = frozenset(m for m, name in enumerate(modules) if name not in names)
    must -= by_others - always
    for run, asked in of_runs:
        yield run, must & of_query.get(run.query, frozenset()) - asked


class Unasked:
    """Refuses a run that asked no LLM where the reference's did: it is no observation.

    Args:
        problem: Names of modules, and theta_0.
        optional: Modules that may be left out.
    """

    def __init__(self, problem: SelectionProblem, optional: Iterable[str] = ()) -> None:
        self._problem, self._optional = problem, frozenset(optional)
        self._of_query: dict[int, frozenset[str]] = {}  # the modules that theta_0 asked

    def add(self, observations: Iterable[Observation]) -> None:
        """Takes in what is known, of theta_0 and of others."""
        for one in observations:
            if one.theta == self._problem.theta_ref and (asked := one.modules_asked):
                names = frozenset(self._problem.modules[module] for module in asked)
                self._of_query[one.query] = names - self._optional

    def check(self, run: Observation) -> None:
        """Raises InputError if a run of another configuration asked nobody."""
        expected, asked = self._of_query.get(run.query), run.modules_asked
        if not expected or asked is None or asked or run.theta == self._problem.theta_ref:
            return
        raise InputError(
            "it answered without a token of any module, so no LLM was asked, and the reference "
            f"asked {sorted(expected)} on this query: {CACHE_OFF}; {ANEW}; or say "
            "optional_modules= if it needs none, or its LLMs tell no tokens"
        )
