"""The surrogate of the dataset-level Bayesian methods (CEI, CONFIG, SafeOpt), and their loop."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, ClassVar, Literal

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from scope_torch.baselines.dataset_level import DatasetLevelOptimizer, Evaluation
from scope_torch.baselines.dataset_model import DatasetModel
from scope_torch.baselines.reduced_space import ReducedSpace
from scope_torch.errors import InputError, whole_number
from scope_torch.model.devices import pick_device
from scope_torch.model.hamming_sums import make_grid
from scope_torch.model.kernels import describe_kernel, kernel_of
from scope_torch.model.per_query import QuerySurrogate
from scope_torch.problem import SelectionProblem
from scope_torch.search.optimizer import Steps
from scope_torch.search.stopping import FREE_CANDIDATE
from scope_torch.space import first_tied, tie_width


@dataclass(frozen=True)
class GPSettings:
    """Units of the two GPs of c and g, their regularisation, and the first data.

    Both have unit variance and model z / amp: with `relative` units z_c = c / c(theta_0) and
    z_g = g / s_0 (with several constraints each g over its threshold);
    with `raw` units z_c is in USD and z_g in units of quality. So in z the prior
    standard deviation is amp, and the regularisation lam amp^2. Beware of `raw` with amp_c = 1:
    costs of 1e-3 USD vanish beside a prior of 1 USD. Methods have `default_gp`, with amplitudes
    for `relative` units, chosen on development worlds by the mean of the best feasible cost.

    Args:
        lam: lambda, at least 1e-9.
        units: `relative` or `raw`.
        amp_c: Prior standard deviation of z_c.
        amp_g: Prior standard deviation of z_g.
        theta0_obs: `free`: theta_0's known averages are a datum at no charge; `charged`: theta_0 is
            evaluated first; `none`: neither.
        n_init: Configurations evaluated before the first choice: the first ones other than theta_0
            in the order in which ties are broken.

    Raises:
        InputError: If a value is outside its range.

    Examples:
        >>> GPSettings.of({"n_init": 5}).lam
        1e-06
    """

    lam: float = 1e-6
    units: Literal["relative", "raw"] = "relative"
    amp_c: float = 1.0
    amp_g: float = 1.0
    theta0_obs: Literal["free", "charged", "none"] = "free"
    n_init: int = 0

    def __post_init__(self) -> None:
        if self.units not in ("relative", "raw"):
            raise InputError(f"units={self.units!r} must be relative or raw")
        if self.theta0_obs not in ("free", "charged", "none"):
            raise InputError(f"theta0_obs={self.theta0_obs!r} must be free, charged or none")
        for name, amp in {"amp_c": self.amp_c, "amp_g": self.amp_g}.items():
            if not (math.isfinite(amp) and amp > 0):
                raise InputError(f"{name}={amp} must be a positive number")
        object.__setattr__(self, "n_init", whole_number("n_init", self.n_init, 0))

    @staticmethod
    def of(
        given: GPSettings | Mapping[str, Any] | None, default: GPSettings | None = None
    ) -> GPSettings:
        """Settings from a mapping such as that of a config file.

        Args:
            given: All settings, or a mapping of those that differ from `default`.
            default: None for `GPSettings()`.

        Raises:
            InputError: If a key or a value is not a setting.
        """
        if isinstance(given, GPSettings):
            return given
        names = [f.name for f in fields(GPSettings)]
        if unknown := sorted(set(given or {}) - set(names)):
            raise InputError(f"unknown gp setting {unknown[0]!r}; use one of {names}")
        return replace(default or GPSettings(), **(given or {}))


class DatasetGP:
    """Independent zero-mean GPs of the averages c and g, g of each constraint; nothing is fitted.

    Args:
        problem: Its Theta and its theta_0, whose averages are the `relative` units.
        settings: Units and lambda.
        kernel: k with k(theta, theta) = 1.
        device: Where the algebra over Theta runs (float64).

    Raises:
        InputError: If lam is below 1e-9, or Theta is too large to enumerate.
    """

    def __init__(
        self,
        problem: SelectionProblem,
        settings: GPSettings,
        kernel: Kernel,
        device: torch.device | str,
    ) -> None:
        make_grid(problem.space, kernel, device)  # refuses a Theta too large to enumerate
        relative = settings.units == "relative"
        self.amp_c_usd = settings.amp_c * (problem.reference_cost_usd if relative else 1.0)
        self.amp_g = [
            settings.amp_g * ((limit.threshold or 1.0) if relative else 1.0)
            for limit in problem.limits
        ]
        self.kernel = kernel
        K = problem.num_constraints
        self.surrogate = QuerySurrogate(problem.space, kernel, 1, settings.lam, device, K)
        self._theta_ref = torch.tensor([problem.theta_ref], device=self.surrogate.device)

    def observe(self, evaluation: Evaluation) -> None:
        """Adds an evaluation; repeats of a configuration are merged without approximation."""
        y_c = evaluation.cost_usd / self.amp_c_usd
        y_g = [g / amp for g, amp in zip(evaluation.violations, self.amp_g, strict=True)]
        self.surrogate.observe(evaluation.theta, 0, y_c, *y_g)

    def model(self) -> DatasetModel:
        """The posterior of both GPs in units of amp; theta_0 shares its class with no other."""
        data = self.surrogate.aggregate()
        distinct = torch.cat([data.codes, self._theta_ref])
        reduced = ReducedSpace(self.surrogate.space, distinct, self.kernel)
        return DatasetModel(data, self.kernel, reduced)


class SurrogateOptimizer(DatasetLevelOptimizer):
    """Evaluates the initial design, then one configuration after another that `_choose` picks.

    theta_out is the best observed feasible configuration, unless a subclass overrides `_completed`.

    Args:
        problem: What to search.
        seed: Decides the query order and all ties.
        name: Name in results.
        gp: `GPSettings`, or a mapping of those that differ from `default_gp`.
        kernel: k; default Matern 5/2 of the Hamming distance.
        device: Where the algebra over Theta runs; None for `auto`, see `pick_device`.

    Raises:
        InputError: If a value is outside its range, or Theta is too large to enumerate.
    """

    default_gp: ClassVar[GPSettings] = GPSettings()

    def __init__(
        self,
        problem: SelectionProblem,
        *,
        seed: int,
        name: str,
        gp: GPSettings | Mapping[str, Any] | None,
        kernel: Kernel | None,
        device: torch.device | str | None,
    ) -> None:
        super().__init__(problem, seed=seed, name=name)
        self.gp_settings = GPSettings.of(gp, self.default_gp)
        if self.gp_settings.n_init >= problem.num_allowed:
            raise InputError(
                f"n_init={self.gp_settings.n_init}: beside theta_0 there are only "
                f"{problem.num_allowed - 1} configurations"
            )
        device = pick_device(device, problem.space.size)
        kernel = kernel_of(kernel, problem.space.sizes)
        self.gp = DatasetGP(problem, self.gp_settings, kernel, device)
        if self.gp_settings.theta0_obs == "free":
            problem.check_reference_known()
            self.gp.observe(self.reference)

    @abstractmethod
    def _choose(self) -> tuple[int, ...] | None:
        """The configuration to evaluate next; None once `_stop` has been called."""

    def _search(self) -> Steps:
        for theta in self._initial_design():
            if (yield from self._evaluate(theta)) is None:
                return
            yield
        while (theta := self._choose()) is not None:
            if theta in self._free():  # no budget would end that
                return self._stop(FREE_CANDIDATE)
            if (yield from self._evaluate(theta)) is None:
                return
            yield

    def _free(self) -> set[tuple[int, ...]]:
        """The configurations that were evaluated, and cost nothing."""
        return {one.theta for one in self.evaluations if one.cost_usd == 0}

    def _initial_design(self) -> Iterator[tuple[int, ...]]:
        problem, settings = self.problem, self.gp_settings
        if settings.theta0_obs == "charged":
            yield problem.theta_ref
        if settings.n_init:
            reference = problem.space.index_of(problem.theta_ref)
            first = self.tie_order()[: settings.n_init + 1]
            for index in first[first != reference][: settings.n_init]:
                yield tuple(problem.space.unrank(index).tolist())

    def _completed(self, evaluation: Evaluation) -> None:
        self.gp.observe(evaluation)
        super()._completed(evaluation)

    def data(self) -> list[Evaluation]:
        """The evaluations behind the GPs' data, repeats averaged."""
        known = [self.reference] if self.gp_settings.theta0_obs == "free" else []
        return [*known, *self.merged_evaluations()]

    def _first(
        self, values: Tensor, best: float, reduced: ReducedSpace, scale: float = 1.0
    ) -> tuple[int, ...]:
        """Of the configurations that tie with the largest value, the first in the seeded order.

        Args:
            values: Values by flat index of `reduced`, -inf where not eligible.
            best: The largest of them.
            reduced: Theta, with the interchangeable configurations merged.
            scale: Magnitude of values; differences below 1e-9 of it count as rounding.
        """
        tied = reduced.expand(values >= best - tie_width(best, scale))
        if (mask := self.problem.allowed_mask()) is not None:
            tied &= mask.to(tied.device)
        index = first_tied(tied.nonzero().squeeze(-1), self.seed)
        return self.problem.space.theta_at(index)

    def _allowed(self, reduced: ReducedSpace) -> Tensor | None:
        """The classes with a member that may be chosen, `size` booleans; None for all."""
        mask = self.problem.allowed_mask()
        return None if mask is None else reduced.any_of(mask)

    @property
    def _cost_scale(self) -> float:
        """c(theta_0) in units of amp_c."""
        return self.problem.reference_cost_usd / self.gp.amp_c_usd

    def settings(self) -> dict[str, Any]:
        """Everything that decides the requests, JSON-serialisable."""
        kernel = describe_kernel(self.gp.kernel, self.problem.space.num_modules)
        return {**super().settings(), "gp": asdict(self.gp_settings), "kernel": kernel}
