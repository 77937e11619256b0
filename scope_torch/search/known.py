"""Observations of earlier searches, as a new search uses them.

**The model** takes in all of them: an old answer is an observation of its pair like any other. With
`learn_reference` it also takes in theta_0's answers, which somebody measured before the search. No
certificate counts these: theta_0 needs none.

**What is asked again.** If the same call always gets the same answer, a pair that is known is not
asked again. This is what a certificate assumes unless told that answers vary. Where they do, a
certificate asks again.

**Calibrate** looks at configurations with an LLM that is new in its module.

**Certificates** count an old answer only if it was not the reason for choosing the candidate, or
could not have been one:

- `bounds`: all of them. The bounds hold for all of Theta at once, however the observations were
  chosen.
- `sequence` where answers do not vary: all of them. The answers of a candidate are Q fixed
  numbers. Its order is drawn afresh by a hash (`order_seed`), not that in which answers were found.
  So a sequence over known numbers is as wrong as one over new numbers, with probability at most
  delta_k.
- `sequence` where they do: none. A configuration that got lucky answers is chosen because of them.
- `population`: the first answer of each pair. Whether the bet of a configuration is won depends on
  these answers and on an order that no answer decides, not on what was chosen. All configurations
  of the earlier searches count in the union bound, also those that are no candidates any more. The
  pairs are formed with theta_0, so it must have been the same in every earlier search.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from scope_torch.errors import InputError
from scope_torch.observation import Observation, Request
from scope_torch.problem import SelectionProblem
from scope_torch.search.calibrate import num_requests
from scope_torch.search.optimizer import Observing

if TYPE_CHECKING:  # both import gpytorch: seconds
    from scope_torch.bounds.repeats import Repeats
    from scope_torch.search.parts import Test

Theta = tuple[int, ...]
_ROUNDING = 1e-12  # of an average
_QUERIES_IF_NEW = 4  # of all, a fresh search's quarter was spent; of none, optima were missed


class Known:
    """Observations of earlier searches.

    Args:
        problem: The problem of the new search.
        observations: In its codes, the first answer to a pair first; costs in USD at the prices of
            the new search.
        answers_vary: Whether answers may differ from call to call; pairs are then asked again.
        num_others: How many configurations of the earlier searches are no candidates any more.
        same_reference: Whether theta_0 was the reference of all of them.
        sources: What `report` says about where they come from, JSON-serialisable.
        tried: Configurations that an earlier search has asked these queries, also if none of their
            answers is among `observations`.
        learn_reference: Whether the model takes in `reference_answers` of the problem.

    Attributes:
        observations: As given.
        reference: theta_0's answers that the model takes in; those among `observations` are not
            repeated.
        tried: As given, with those of `observations`.

    Raises:
        InputError: If one is not a pair of the problem, or lacks an outcome that a constraint
            needs; or if theta_0's answers are to be learned and the problem does not have them.

    Examples:
        >>> from scope_torch.tasks.synthetic import synthetic_task
        >>> problem = synthetic_task().problem
        >>> known = Known(problem, [Observation((0, 0), 5, cost_usd=0.01, quality=1.0)])
        >>> list(known.answers((0, 0))), known.has_new_llm((0, 0)), known.has_new_llm((0, 1))
        ([5], False, True)
    """

    def __init__(
        self,
        problem: SelectionProblem,
        observations: Sequence[Observation] = (),
        *,
        answers_vary: bool = False,
        num_others: int = 0,
        same_reference: bool = True,
        sources: Sequence[Mapping[str, Any]] = (),
        tried: Iterable[Theta] = (),
        learn_reference: bool = False,
    ) -> None:
        self.observations, self.sources = list(observations), list(sources)
        self.num_others, self.same_reference = num_others, same_reference
        self._problem, self.answers_vary = problem, answers_vary
        self._answers: dict[Theta, dict[int, Observation]] = {}
        self._is_best_taken = False
        self._used: list[set[int]] = [set() for _ in problem.modules]
        for observation in self.observations:
            self._check(observation)
            self._answers.setdefault(observation.theta, {}).setdefault(
                observation.query, observation
            )
            for codes, code in zip(self._used, observation.theta, strict=True):
                codes.add(code)
        self.tried = {*tried, *self._answers}
        answers = reference_of(problem) if learn_reference else []
        seen = {observation.request for observation in self.observations}
        self.reference = [answer for answer in answers if answer.request not in seen]
        self._learns_reference = learn_reference

    def _check(self, observation: Observation) -> None:
        theta, query = observation.theta, observation.query
        self._problem.space.check(theta, "theta of a known observation")
        if not 0 <= query < self._problem.num_queries:
            raise InputError(
                f"a known observation is of query {query}, but the problem has "
                f"{self._problem.num_queries}; leave out what is no query any more"
            )
        self._problem.grades(observation)

    def check_reference(self) -> None:
        """Refuses observations that `certificate=population` must not count.

        Raises:
            InputError: If an earlier search had another reference.
        """
        if self.observations and not self.same_reference:
            raise InputError(
                "certificate=population pairs answers with the reference's, but an earlier search "
                "had another reference: its answers may be the reason for this one; take "
                "certificate=sequence, or search anew on new queries"
            )

    @property
    def usd(self) -> float:
        """What the observations would cost today, in USD."""
        return math.fsum(observation.cost_usd for observation in self.observations)

    def answers(self, theta: Theta) -> dict[int, Observation]:
        """The first answers of a configuration by query, if they need not be asked again."""
        return {} if self.answers_vary else self._answers.get(theta, {})

    def is_complete(self, theta: Theta) -> bool:
        """Whether all its answers are known, so that it costs nothing to look at them."""
        return len(self.answers(theta)) == len(self._problem.queries_of(theta))

    def answer(self, request: Request) -> Observation | None:
        """The first answer of a pair, if it need not be asked again."""
        return self.answers(request.theta).get(request.query)

    def observe(
        self, requests: Sequence[Request], ask: Callable[[Sequence[Request]], Observing]
    ) -> Observing:
        """Answers of `requests`; a pair that is known is not asked for."""
        new = [request for request in requests if self.answer(request) is None]
        asked = iter((yield from ask(new)) if new else ())
        answers: list[Observation] = []
        for request in requests:
            answer = self.answer(request) or next(asked, None)
            if answer is None:  # the budget is spent
                break
            answers.append(answer)
        return answers

    def most_answered(self, thetas: Sequence[Theta], query_order: Sequence[int]) -> list[int]:
        """The queries, those first that most of `thetas` have answered; ties in order."""
        number = Counter(query for theta in thetas for query in self.answers(theta))
        return sorted(query_order, key=lambda query: -number[query])

    def pool(self, pool: list[Theta], num_queries: int | None) -> tuple[list[Theta], int | None]:
        """What Calibrate looks at: configurations, and how many queries; None for all.

        Only the configurations that use something new, and only on a few queries: the search finds
        out the rest where it pays. If less is known than Calibrate would observe, it is made as
        usual.
        """
        Q = num_queries or self._problem.num_queries
        if len(self.observations) < num_requests(len(pool), Q):
            return pool, num_queries
        return [theta for theta in pool if self.has_new_llm(theta)], min(_QUERIES_IF_NEW, Q)

    def trial(self, theta: Theta, test: Test, query_order: Sequence[int]) -> Trial:
        """The test of a candidate, with what is known of it; see `Trial`.

        A candidate of which all is known is asked again, should it be chosen once more: it would
        else be chosen for nothing for ever.
        """
        answers = self.answers(theta)
        if answers and self.is_complete(theta):
            del self._answers[theta]
        grades = {query: self._problem.grades(answer) for query, answer in answers.items()}
        if self._problem.offered:  # where nothing can be observed, the worst grade counts
            offered = set(self._problem.queries_of(theta))
            worst = (0.0,) * self._problem.num_constraints
            grades |= {query: worst for query in query_order if query not in offered}
        return Trial(test, grades, query_order)

    def has_new_llm(self, theta: Theta) -> bool:
        """Whether some module uses an LLM that it was never observed with."""
        return any(code not in used for used, code in zip(self._used, theta, strict=True))

    def complete(self) -> list[Theta]:
        """The configurations of which every query need not be asked again."""
        Q = self._problem.num_queries
        return [theta for theta in self._answers if len(self.answers(theta)) == Q]

    def take_best(self) -> Theta | None:
        """The best complete configuration whose averages satisfy every constraint, if any, once.

        theta_0 does not count: the search starts from it anyway.
        """
        if self._is_best_taken:
            return None
        self._is_best_taken = True
        problem, Q = self._problem, self._problem.num_queries
        best: tuple[float, Theta] | None = None
        for theta in self.complete():
            answers = self._answers[theta].values()
            loss = math.fsum(problem.loss(o.cost_usd, o.quality) for o in answers) / Q
            columns = zip(*(problem.violations(problem.grades(o)) for o in answers), strict=True)
            if theta == problem.theta_ref or not problem.is_allowed(theta):
                continue
            if max(map(math.fsum, columns)) <= _ROUNDING * Q:
                best = min(best or (loss, theta), (loss, theta))
        return None if best is None else best[1]

    def settings(self) -> dict[str, Any]:
        """A hash of the observations, and whether theta_0's are learned; only what there is."""
        learned = {"learn_reference": True} if self._learns_reference else {}
        if not self.observations:
            return learned
        lines = "\n".join(observation.to_json() for observation in self.observations)
        return {"known": hashlib.sha256(lines.encode()).hexdigest()[:16], **learned}

    def order_seed(self, seed: int) -> int:
        """A seed for the orders of certificates that depends on all that is known.

        With the seed alone, an order could repeat that of the search in which the answers were
        found.
        """
        content = f"{seed} {self.settings()}".encode()
        return int.from_bytes(hashlib.sha256(content).digest()[:8], "big") >> 1

    def report(self) -> dict[str, Any]:
        """What is known, and whether certificates count it; nothing without earlier searches.

        `usd` is what the observations would cost today, in USD; for the others see `Known`.
        """
        if not self.observations and not self.sources:  # a source tells also what was left out
            return {}
        return {
            "known": {
                "observations": len(self.observations),
                "usd": self.usd,
                "counted": not self.answers_vary,
                "num_others": self.num_others,
                "same_reference": self.same_reference,
                "sources": [dict(source) for source in self.sources],
            }
        }


def reference_of(problem: SelectionProblem) -> list[Observation]:
    """theta_0's answers as observations.

    Raises:
        InputError: If the problem does not have them, or if they lack an outcome that a constraint
            needs.
    """
    if problem.reference_answers is None:
        raise InputError(
            "learn_reference=true, but the problem has no reference_answers: give theta_0's cost "
            "and quality of every query, or say learn_reference=false"
        )
    if problem.num_constraints > 1:
        raise InputError(
            f"learn_reference=true with {problem.num_constraints} constraints: theta_0's answers "
            "tell only cost and quality; say learn_reference=false"
        )
    pairs = enumerate(problem.reference_answers)
    return [Observation(problem.theta_ref, query, *answer) for query, answer in pairs]


def known_of(
    problem: SelectionProblem,
    known: Known | Sequence[Observation],
    flips: float | Repeats,
    learn_reference: bool = False,
) -> Known:
    """Observations of earlier searches as a search takes them.

    Args:
        problem: Of the new search.
        known: Observations in the codes of the problem, or a `Known` of the same candidates.
        flips: See `flips_of`; anything but 0 says that answers vary.
        learn_reference: See `Known`.

    Raises:
        InputError: See `Known`.
    """
    if not isinstance(known, Known):
        known = Known(problem, known)
    return Known(
        problem,
        known.observations,
        answers_vary=known.answers_vary or flips != 0,
        num_others=known.num_others,
        same_reference=known.same_reference,
        sources=known.sources,
        tried=known.tried,
        learn_reference=learn_reference,
    )


class Trial:
    """The test of a candidate, some of whose answers are known.

    Args:
        test: From `Certificate.begin`.
        grades: Of the known answers, by query.
        query_order: All queries, in the order in which ties are broken.

    Attributes:
        order: The queries that must be asked.
        in_order: Whether in just that order.
    """

    def __init__(
        self,
        test: Test,
        grades: Mapping[int, Sequence[float]],
        query_order: Sequence[int],
    ) -> None:
        self._test, self._grades = test, grades
        self.in_order = test.order is not None
        order = query_order if test.order is None else test.order
        self.order = [query for query in order if query not in grades] if grades else order
        self._all = order
        self._waiting = deque(order if grades and self.in_order else ())

    @property
    def margin(self) -> float:
        """See `Test`."""
        return self._test.margin

    @property
    def refuted(self) -> bool:
        """See `Test`."""
        return self._test.refuted

    def begin(self, upper_g: float) -> bool:
        """Whether the candidate is certified by known answers; there must be some."""
        if not self.in_order:
            return self._test.update((), upper_g)
        return self._take_known(upper_g, certified=False)

    def update(self, grades: Sequence[float], upper_g: float) -> bool:
        """See `Test`; the known answers that come next in its order follow."""
        certified = self._test.update(grades, upper_g)
        if not self._waiting:
            return certified
        self._waiting.popleft()
        return self._take_known(upper_g, certified)

    def again(self) -> bool:
        """See `Test`; the known answers that come first in its order follow."""
        if not self._test.again():
            return False
        if self._grades:
            self._waiting = deque(self._all)
            self._take_known(math.inf, certified=False)
        return True

    def end(self) -> None:
        """See `Test`."""
        self._test.end()

    def _take_known(self, upper_g: float, certified: bool) -> bool:
        while self._waiting and self._waiting[0] in self._grades:
            grades = self._grades[self._waiting.popleft()]
            certified = self._test.update(grades, upper_g)
        return certified
