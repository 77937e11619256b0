"""The selection problem: the configurations, their reference, and the quality threshold."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from torch import Tensor

from scope_torch.allowed import Allowed, Listed, Predicate, checked_offered, codes_of_list
from scope_torch.constraints import COST, QUALITY, Constraint
from scope_torch.errors import InputError, whole_number
from scope_torch.observation import Observation
from scope_torch.reference import (
    check_cost,
    check_sample,
    checked_answers,
    counted_cost,
    limits_if_cost,
    limits_if_quality,
)
from scope_torch.space import ConfigSpace, by_module, codes_of, lists_of_llms

__all__ = ["Objective", "SelectionProblem", "by_module", "codes_of"]

Objective = Literal["cost", "quality"]


def _is_half(text: str) -> bool:
    """Whether it has half of a surrogate pair, which no file can hold."""
    return text.encode(errors="replace").decode() != text


@dataclass(frozen=True)
class SelectionProblem:
    """Constrained LLM selection for a compound AI system (problem-main).

    Minimise the average cost c(theta) over Theta subject to g(theta) = s_0 - s(theta) <= 0, where
    s_0 = (1 - epsilon) s(theta_0), and to g_k(theta) <= 0 for every further constraint. Or, with
    `objective="quality"`, maximise s(theta) subject to a bound on c(theta), and to the others.

    Args:
        name: Name of the problem, shown in paths, logs and plots.
        modules: Names of the N modules.
        llms: For each module, the names of its candidate LLMs; a code is a position in this list.
            Also a dict of such lists, by module.
        num_queries: Q, the number of queries.
        theta_ref: The reference configuration theta_0, as codes or as names.
        reference_quality: s(theta_0), its average quality, in (0, 1]; known before the search.
        reference_cost_usd: c(theta_0), its average cost of a query in USD; known before the search.
            Above 0, or if quality is the objective, at least 0.
        epsilon: Tolerated relative loss of quality, in (0, 1); None if `constraints` has one on
            quality.
        deployment_queries: H, how many queries the system will answer with the configuration that
            is chosen. `scope_joint` stops when searching on would cost more than it is expected to
            save on them. None if it is not known.
        constraints: Further constraints, see `at_least` and `at_most`, or their texts.
        reference_outcomes: theta_0's average of each outcome that they name, in the unit of the
            outcome and with its cap; needed if they are relative to it. Of a quantile, under its
            text: the share of theta_0's runs that are within the bound.
        objective: `cost`, which is minimised, or `quality`, which is maximised; then one of the
            constraints bounds `cost_usd`, and none the quality.
        reference_answers: (cost in USD, quality) of theta_0 on each of the Q queries; None if only
            their averages are known. Needed for statements about tomorrow's queries, see
            `scope_torch.bounds.population`.
        allowed: Which configurations may be chosen: a rule, such as
            `lambda llms: llms["planner"] != llms["critic"]`, or a list of configurations; None for
            all. No method observes or returns another one. See `scope_torch.allowed`.
        offered: For configurations, as codes, that cannot be observed on every query: the queries
            on which they can. None if all can be observed on all. See docs/howto/own-data.md,
            "A table with holes".
        reference_queries: theta_0's averages are over so many of the Q queries, so they are
            estimates: no bound is relative to them. A constraint on quality then stands beside
            `epsilon`: (1 - epsilon) times the most that s(theta_0) may be. None: over all queries.

    Raises:
        InputError: If a value is outside its range, a name is repeated, or theta_0 is not allowed.

    Examples:
        >>> problem = SelectionProblem(
        ...     name="support",
        ...     modules=("retrieve", "answer"),
        ...     llms=(("nano", "pro"), ("nano", "mini", "pro")),
        ...     num_queries=50,
        ...     theta_ref=("pro", "pro"),  # or (1, 2)
        ...     reference_quality=0.8,
        ...     reference_cost_usd=0.02,
        ...     epsilon=0.05,
        ... )
        >>> round(problem.s_0, 4), problem.space.size
        (0.76, 6)
        >>> problem.theta_ref
        (1, 2)
        >>> problem.names((0, 1))
        {'retrieve': 'nano', 'answer': 'mini'}
        >>> problem.codes(["nano", "mini"])
        (0, 1)
        >>> from dataclasses import replace
        >>> fast = replace(problem, constraints=["latency_s <= 2 cap 10"])
        >>> [str(constraint) for constraint in fast.limits]
        ['quality >= 0.76', 'latency_s <= 2 cap 10']
        >>> cap = "cost_usd <= 0.005 cap 0.1"
        >>> best = replace(problem, objective="quality", epsilon=None, constraints=[cap])
        >>> [str(constraint) for constraint in best.limits]
        ['cost_usd <= 0.005 cap 0.1']
    """

    name: str
    modules: tuple[str, ...]
    llms: tuple[tuple[str, ...], ...]
    num_queries: int
    theta_ref: tuple[int, ...]
    reference_quality: float
    reference_cost_usd: float
    epsilon: float | None = None
    deployment_queries: float | None = None
    constraints: tuple[Constraint, ...] = ()
    reference_outcomes: Mapping[str, float] = field(default_factory=dict, hash=False)
    objective: Objective = "cost"
    reference_answers: tuple[tuple[float, float], ...] | None = field(
        default=None, repr=False, compare=False
    )
    allowed: Predicate | Listed | None = field(default=None, repr=False)
    offered: Mapping[tuple[int, ...], Sequence[int]] | None = field(
        default=None, repr=False, hash=False
    )
    reference_queries: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "llms", lists_of_llms(self.modules, self.llms))
        if len(self.modules) != len(self.llms):
            raise InputError(
                f"{len(self.modules)} modules but {len(self.llms)} lists of LLMs; give one list "
                "for each module"
            )
        if len(set(self.modules)) != len(self.modules):
            raise InputError(f"modules={list(self.modules)}: give every module a name of its own")
        for module, names in zip(self.modules, self.llms, strict=True):
            if len(set(names)) != len(names):
                raise InputError(f"module {module!r} lists an LLM twice: {list(names)}")
            for name in (module, *names):
                if not name or _is_half(str(name)):
                    raise InputError(f"{name!r} cannot name a module or an LLM")
        number = whole_number("num_queries", self.num_queries, 1, more=", at least one query")
        object.__setattr__(self, "num_queries", number)
        if self.epsilon is not None and not 0 < self.epsilon < 1:
            raise InputError(f"epsilon={self.epsilon} must lie in (0, 1)")
        is_sample = self.reference_queries is not None  # which may be wrong, and the others right
        if not (0 < self.reference_quality <= 1 or (is_sample and self.reference_quality == 0)):
            raise InputError(
                f"reference_quality={self.reference_quality} must lie in (0, 1]; "
                "with a reference that is never right, the threshold would be 0"
            )
        check_cost(self.reference_cost_usd, may_be_free=self.objective == "quality")
        H = self.deployment_queries
        if H is not None and not (math.isfinite(H) and H > 0):
            raise InputError(
                f"deployment_queries={self.deployment_queries} must be a positive number: how many "
                "queries the system will answer; leave it out (null) if that is not known"
            )
        if self.reference_answers is not None:
            said = {"cost_usd": self.reference_cost_usd, "quality": self.reference_quality}
            answers = checked_answers(self.reference_answers, self.num_queries, said)
            object.__setattr__(self, "reference_answers", answers)
        theta_ref: Any = self.theta_ref
        if isinstance(theta_ref, str) or any(isinstance(llm, str) for llm in theta_ref):
            theta_ref = self.codes(theta_ref, "theta_ref")
        object.__setattr__(self, "theta_ref", self.space.check(theta_ref, "theta_ref"))
        parsed = [Constraint.parse(c) if isinstance(c, str) else c for c in self.constraints]
        object.__setattr__(self, "constraints", tuple(parsed))
        if self.objective not in ("cost", "quality"):
            raise InputError(f"objective={self.objective!r} must be cost or quality")
        if self.reference_queries is not None:
            check_sample(self.reference_queries, self.num_queries, self.constraints)
        _ = self.limits
        if self.allowed is not None and not callable(self.allowed):
            listed = codes_of_list(self.allowed, self.modules, self.llms)
            object.__setattr__(self, "allowed", listed)
        self._check_reference_is_allowed()
        if self.offered is not None:
            offered = checked_offered(self.offered, self.space, self.num_queries, self.theta_ref)
            object.__setattr__(self, "offered", offered)

    @cached_property
    def reference_averages(self) -> dict[str, float]:
        """theta_0's average of what counts of each outcome, by constraint, as far as it is known.

        Of its cost at most the cap counts, if the cost is bounded.
        """
        cost_usd = counted_cost(self.constraints, self.reference_cost_usd, self.reference_answers)
        return {QUALITY: self.reference_quality, COST: cost_usd, **self.reference_outcomes}

    @cached_property
    def limits(self) -> tuple[Constraint, ...]:
        """All constraints with absolute bounds; that on quality, or on the cost, is the first."""
        known = self.reference_averages
        if self.objective == "quality":
            return limits_if_quality(self.constraints, self.epsilon, known)
        if self.reference_queries is not None:  # nobody knows whether s(theta_0) is above s_0
            return limits_if_cost(self.constraints, None, known | {QUALITY: 1.0})
        return limits_if_cost(self.constraints, self.epsilon, known)

    @property
    def others(self) -> tuple[Constraint, ...]:
        """The constraints but that on quality."""
        return self.limits[1:] if self.objective == "cost" else self.limits

    @cached_property
    def rule(self) -> Allowed | None:
        """Which configurations may be chosen; None for all."""
        given: Any = self.allowed
        return None if given is None else Allowed(self.modules, self.llms, given)

    def is_allowed(self, theta: Sequence[int]) -> bool:
        """Whether a configuration may be chosen."""
        return self.rule is None or self.rule(theta)

    def allowed_mask(self) -> Tensor | None:
        """Which configurations may be chosen, `|Theta|` booleans on the CPU; None for all.

        Also None if Theta is too large to enumerate.
        """
        return None if self.rule is None else self.rule.mask

    @property
    def num_allowed(self) -> int:
        """How many configurations may be chosen; |Theta| if a rule was given for too many."""
        count = None if self.rule is None else self.rule.count
        return self.space.size if count is None else count

    def queries_of(self, theta: tuple[int, ...]) -> Sequence[int]:
        """The queries on which a configuration can be observed, rising."""
        return (self.offered or {}).get(theta, range(self.num_queries))

    def _check_reference_is_allowed(self) -> None:
        if not self.is_allowed(self.theta_ref):
            raise InputError(
                f"allowed refuses theta_0, {self.names(self.theta_ref)}, with which every other "
                "configuration is compared; allow it, or take another theta_ref"
            )

    @property
    def space(self) -> ConfigSpace:
        """Theta, the space of configurations."""
        return ConfigSpace(tuple(len(names) for names in self.llms))

    @property
    def s_0(self) -> float:
        """Quality threshold (1 - epsilon) s(theta_0); 0 if quality is the objective."""
        return self.limits[0].threshold if self.objective == "cost" else 0.0

    @property
    def scale(self) -> float:
        """Scale of the objective: c(theta_0) in USD, or 1 if it is the quality."""
        return self.reference_cost_usd if self.objective == "cost" else 1.0

    @property
    def most_reference_quality(self) -> float:
        """The most that s(theta_0) may be, of which s_0 is a share if epsilon is given."""
        if self.reference_queries is None or self.epsilon is None:
            return self.reference_quality
        return self.s_0 / (1 - self.epsilon)

    @property
    def relative_loss(self) -> float | None:
        """Epsilon, also as a relative constraint on quality; None if s_0 is a number."""
        given = [
            1 - limit.value
            for limit in self.constraints
            if limit.outcome == QUALITY and limit.is_relative
        ]
        return self.epsilon if self.epsilon is not None else next(iter(given), None)

    @property
    def num_constraints(self) -> int:
        """K, the number of constraints; 1 in the paper."""
        return len(self.limits)

    def constraint(self, quality: float) -> float:
        """G = s_0 - quality, in units of quality; at most 0 is feasible."""
        return self.s_0 - quality

    def loss(self, cost_usd: float, quality: float) -> float:
        """What is minimised: the cost in USD, or 1 - quality."""
        return cost_usd if self.objective == "cost" else 1 - quality

    @property
    def reference_loss(self) -> float:
        """The loss of theta_0."""
        return self.loss(self.reference_cost_usd, self.reference_quality)

    @property
    def first_u_out(self) -> float:
        """What a configuration must not exceed to be better than theta_0, see `loss`.

        1 if quality is the objective and theta_0 is known to violate a constraint.
        """
        if self.objective == "cost":
            return self.reference_cost_usd
        is_cheap = self.limits[0].holds(self.reference_averages[COST])
        violates = not is_cheap or max(self.reference_violations(), default=0.0) > 0
        return 1.0 if violates else self.reference_loss

    def grades(self, observation: Observation) -> tuple[float, ...]:
        """The grade in [0, 1] of an observation under every constraint.

        The first is its quality, unless quality is the objective.

        Raises:
            InputError: If an outcome is missing or outside its range.
        """
        if len(self.limits) == 1 and self.objective == "cost":
            return (observation.quality,)
        return tuple(limit.grade_of(limit.of(observation)) for limit in self.limits)

    def reference_violations(self) -> tuple[float, ...]:
        """G of theta_0 under the further constraints; 0, as if it held, where it is not known.

        Also 0 where only rounding keeps it from the bound.
        """

        def violation(limit: Constraint) -> float:
            if limit.name not in self.reference_outcomes:
                return 0.0
            average = self.reference_outcomes[limit.name]
            g = limit.threshold - limit.grade_of(average)
            return min(g, 0.0) if limit.holds(average) else g

        return tuple(map(violation, self.limits[1:]))

    def check_reference_known(self) -> None:
        """Refuses a theta_0 about which not everything is known.

        Raises:
            InputError: If a constraint's name is missing in `reference_outcomes`.
        """
        for limit in self.limits[1:]:
            if limit.name not in self.reference_outcomes:
                raise InputError(
                    f"{limit}: theta_0's average {limit.outcome} is not known, which this method "
                    "starts from; give it in reference_outcomes, or set theta0_obs=charged (of "
                    "methods with a gp, gp.theta0_obs)"
                )

    def check_one_constraint(self, method: str) -> None:
        """Refuses constraints that a method does not know.

        Raises:
            InputError: If there are several constraints, or the objective is not the cost.
        """
        self.check_objective_is_cost(method)
        if self.num_constraints > 1:
            raise InputError(
                f"{method} knows a bound on quality only, not {self.limits[1]}; scope, "
                "scope_joint, cei, config_bo, safeopt, optuna_gp and random_search know others"
            )

    def check_objective_is_cost(self, method: str) -> None:
        """Refuses an objective that a method does not know.

        Raises:
            InputError: If the objective is not the cost.
        """
        if self.objective != "cost":
            raise InputError(
                f"{method} minimises the cost; scope and scope_joint know "
                f"objective={self.objective}"
            )

    def violations(self, grades: Sequence[float]) -> tuple[float, ...]:
        """G of every constraint, its threshold minus a grade; at most 0 is feasible."""
        return tuple(
            limit.threshold - grade for limit, grade in zip(self.limits, grades, strict=True)
        )

    def names(self, theta: Sequence[int]) -> dict[str, str]:
        """The name of the LLM of each module, by module; the inverse of `codes`."""
        codes = self.space.check(theta)
        return {
            module: names[code]
            for module, names, code in zip(self.modules, self.llms, codes, strict=True)
        }

    def codes(self, llms: Sequence[str], name: str = "theta") -> tuple[int, ...]:
        """Codes of a configuration that is given by the names of its LLMs.

        Args:
            llms: One name for each module.
            name: Name of this value in error messages.

        Raises:
            InputError: If a name is not a candidate of its module.
        """
        return codes_of(llms, self.modules, self.llms, name)
