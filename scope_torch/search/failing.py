"""Which LLMs a search drops because their calls keep failing.

A call fails if the application raised an error, or got no reply in a live run: `Observation.failed`
says so. It says only that some module's LLM does not work. So:

- An LLM works in a module if a call with it has been answered in this search, rightly or wrongly.
  Those of theta_0 do, because it was measured. Answers of earlier searches say nothing: an LLM may
  be retired since.
- The suspects of a failed call are its modules whose LLM is not known to work. If they all have the
  same LLM, that LLM is to blame, in each of these modules. Else nobody is, until more is known.
- An LLM that is to blame for five calls is dropped from its module. The calls differ in
  configuration or query: a query that no LLM can answer is no reason.

All of this follows from the observations in the asked order. So a search that is resumed, or that
runs at another concurrency, drops the same LLMs at the same time. It only narrows what is chosen:
what a certificate says of a candidate does not change.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from scope_torch.observation import Observation
from scope_torch.problem import SelectionProblem

ModuleLLM = tuple[int, int]  # a module and the code of its LLM
_MOST_FAILURES = 5


def uses_any(llms: Mapping[str, str], dropped: Mapping[str, Sequence[str]]) -> bool:
    """Whether a configuration uses an LLM that was dropped; both by module."""
    return any(llms[module] in names for module, names in dropped.items())


class FailingLLMs:
    """Follows the observations of a search.

    Args:
        problem: What is searched.

    Attributes:
        dropped: Module and code of each LLM that is dropped, in the order in which that happened.

    Examples:
        >>> from scope_torch.tasks.synthetic import synthetic_task
        >>> problem = synthetic_task().problem
        >>> failing = FailingLLMs(problem)
        >>> theta = (4, problem.theta_ref[1])
        >>> for query in range(5):
        ...     _ = failing.record(Observation(theta, query, 0.0, 0.0, failed="app"))
        >>> failing.dropped, failing.report()
        ([(0, 4)], {'dropped': {'module_1': ['nano']}})
    """

    def __init__(self, problem: SelectionProblem) -> None:
        self._problem = problem
        self.dropped: list[ModuleLLM] = []
        self._works = set(enumerate(problem.theta_ref))
        self._answered: set[tuple[int, ...]] = set()
        self._failures: dict[tuple[tuple[int, ...], int], None] = {}  # (theta, query), in order

    def record(self, observation: Observation) -> bool:
        """Takes in an observation; returns whether an LLM is dropped because of it."""
        theta = observation.theta
        if observation.failed == "app":
            self._failures[theta, observation.query] = None
        elif theta in self._answered:
            return False
        else:
            self._answered.add(theta)
            self._works.update(enumerate(theta))
        number = len(self.dropped)
        while self._drop():  # which explains failures, and leaves others with fewer suspects
            pass
        return len(self.dropped) > number

    def is_dropped(self, theta: tuple[int, ...]) -> bool:
        """Whether a configuration uses an LLM that is dropped."""
        return not set(self.dropped).isdisjoint(enumerate(theta))

    def _drop(self) -> bool:
        """Drops those who are to blame for enough calls."""
        blamed: defaultdict[ModuleLLM, int] = defaultdict(int)
        for theta, query in list(self._failures):
            suspects = set(enumerate(theta)) - self._works
            if not suspects or not suspects.isdisjoint(self.dropped):  # it is explained
                del self._failures[theta, query]
            elif len({self._problem.llms[module][code] for module, code in suspects}) == 1:
                for suspect in suspects:
                    blamed[suspect] += 1
        found = sorted(one for one, calls in blamed.items() if calls >= _MOST_FAILURES)
        self.dropped += found
        return bool(found)

    def report(self) -> dict[str, dict[str, list[str]]]:
        """The names of the dropped LLMs by module, for `Optimizer.report`; nothing if none is."""
        names: dict[str, list[str]] = {}
        for module, code in self.dropped:
            name = self._problem.modules[module]
            names.setdefault(name, []).append(self._problem.llms[module][code])
        return {"dropped": names} if names else {}
