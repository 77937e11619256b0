"""Optuna's Gaussian-process sampler with a constraint: constrained log EI with a fitted GP."""

from __future__ import annotations

import importlib
from typing import Any, Literal

from baselines.dataset_level import DatasetLevelOptimizer, Evaluation
from scope_torch.errors import InputError
from scope_torch.problem import SelectionProblem
from scope_torch.search.optimizer import Steps

Theta0Obs = Literal["free", "charged", "none"]


class OptunaGP(DatasetLevelOptimizer):
    """Evaluates what `optuna.samplers.GPSampler` suggests; one categorical parameter a module.

    A peer from outside: unlike CEI its kernel is fitted (Matern 5/2, a length scale for each
    module) and its acquisition is maximised by local search. It minimises c / c(theta_0) subject
    to g <= 0. Repeats are permitted and paid for.

    Args:
        problem: What to search.
        seed: Decides the query order and the sampler; Optuna takes it modulo 2^32.
        n_startup_trials: Configurations known before the GP is used; those evaluated are drawn by
            Optuna (its default is 10).
        theta0_obs: Whether the known averages of theta_0 are a trial at no charge (`free`), theta_0
            is evaluated first (`charged`), or neither (`none`).
        name: Name in results.

    Raises:
        InputError: If Optuna is not installed, or a value is outside its range.
    """

    def __init__(
        self,
        problem: SelectionProblem,
        *,
        seed: int,
        n_startup_trials: int = 10,
        theta0_obs: Theta0Obs = "free",
        name: str = "optuna_gp",
    ) -> None:
        if n_startup_trials < 1 or n_startup_trials != int(n_startup_trials):
            raise InputError(f"n_startup_trials={n_startup_trials} must be a whole number >= 1")
        if theta0_obs not in ("free", "charged", "none"):
            raise InputError(f"theta0_obs={theta0_obs!r} must be free, charged or none")
        super().__init__(problem, seed=seed, name=name)
        self._optuna = import_optuna()
        self.n_startup_trials = n_startup_trials
        self.theta0_obs: Theta0Obs = theta0_obs

    def _search(self) -> Steps:
        study = self._study()
        distributions = self._distributions()
        while True:
            trial = study.ask(distributions)
            theta = tuple(trial.params[module] for module in self.problem.modules)
            evaluation = yield from self._evaluate(theta)
            if evaluation is None:
                return
            trial.set_constraint("g", evaluation.g)
            study.tell(trial, self._objective(evaluation))
            yield

    def _study(self) -> Any:
        optuna = self._optuna
        sampler = optuna.samplers.GPSampler(
            seed=self.seed % 2**32,
            n_startup_trials=self.n_startup_trials,
        )
        verbosity = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.WARNING)  # it would announce the study
        try:
            study = optuna.create_study(sampler=sampler)
        finally:
            optuna.logging.set_verbosity(verbosity)
        reference = self.reference
        params = dict(zip(self.problem.modules, reference.theta, strict=True))
        if self.theta0_obs == "charged":
            study.enqueue_trial(params)
        if self.theta0_obs == "free":
            study.add_trial(
                optuna.trial.create_trial(
                    params=params,
                    distributions=self._distributions(),
                    value=self._objective(reference),
                    constraints={"g": reference.g},
                )
            )
        return study

    def _distributions(self) -> dict[str, Any]:
        categorical = self._optuna.distributions.CategoricalDistribution
        sizes = zip(self.problem.modules, self.problem.space.sizes, strict=True)
        return {module: categorical(range(size)) for module, size in sizes}

    def _objective(self, evaluation: Evaluation) -> float:
        return evaluation.cost_usd / self.problem.reference_cost_usd

    def settings(self) -> dict[str, Any]:
        """See `Optimizer`."""
        return {
            **super().settings(),
            "optuna": self._optuna.__version__,
            "n_startup_trials": self.n_startup_trials,
            "theta0_obs": self.theta0_obs,
        }


def import_optuna() -> Any:
    """Optuna, of a version whose trials take constraints.

    Raises:
        InputError: If it cannot be imported or is older.
    """
    try:
        optuna = importlib.import_module("optuna")
        importlib.import_module("scipy")
    except ImportError as error:
        raise InputError(
            f"optuna_gp needs Optuna and SciPy ({error}); pip install 'scope-torch[peers]'"
        ) from error
    if not hasattr(optuna.trial.Trial, "set_constraint"):
        raise InputError(
            f"optuna {optuna.__version__} is too old for optuna_gp; "
            "pip install 'scope-torch[peers]' brings version 5"
        )
    return optuna
