"""Optuna's sampler with a fitted Gaussian process and constrained log EI."""

from __future__ import annotations

import importlib
from typing import Any, Literal

from scope_torch.baselines.dataset_level import DatasetLevelOptimizer, Evaluation
from scope_torch.errors import InputError, whole_number
from scope_torch.problem import SelectionProblem
from scope_torch.search.optimizer import Steps

Theta0Obs = Literal["free", "charged", "none"]
_MOST_REPEATS = 20  # suggestions in a row that are known; then hardly anything new will come


class OptunaGP(DatasetLevelOptimizer):
    """Evaluates the suggestions of `optuna.samplers.GPSampler`: a categorical parameter a module.

    It minimises c / c(theta_0) subject to g <= 0. Unlike CEI, Optuna fits its kernel (Matern 5/2,
    a length scale for each module), maximises its acquisition by local search, and may suggest a
    configuration again. It is then told the first answers again, and nothing is paid. In the place
    of a suggestion that is not allowed, the nearest allowed configuration is evaluated.

    Args:
        problem: What to search.
        seed: Decides the query order and the sampler; Optuna takes it modulo 2^32.
        n_startup_trials: Number of configurations known before the GP is used; Optuna draws at
            random those to evaluate (its default is 10).
        theta0_obs: `free`: theta_0's known averages are a trial at no charge; `charged`: theta_0 is
            evaluated first; `none`: neither.
        name: Name in results.

    Raises:
        InputError: If Optuna is not installed, or a value is outside its range.

    Examples:
        >>> import scope_torch as st
        >>> from scope_torch.tasks.synthetic import synthetic_task
        >>> task = synthetic_task()
        >>> search = OptunaGP(task.problem, seed=0)
        >>> result = st.run(task.problem, search, task.evaluator, budget_usd=1.0)
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
        if theta0_obs not in ("free", "charged", "none"):
            raise InputError(f"theta0_obs={theta0_obs!r} must be free, charged or none")
        super().__init__(problem, seed=seed, name=name)
        self._optuna = import_optuna()
        self.n_startup_trials = whole_number("n_startup_trials", n_startup_trials, 1)
        self.theta0_obs: Theta0Obs = theta0_obs

    def _search(self) -> Steps:
        study = self._study()
        distributions, repeats = self._distributions(), 0
        known = {self.reference.theta: self.reference} if self.theta0_obs == "free" else {}
        while repeats < _MOST_REPEATS:
            trial = study.ask(distributions)
            theta = tuple(trial.params[module] for module in self.problem.modules)
            if (near := self.allowed_near(theta)) != theta:
                study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
                study.enqueue_trial(dict(zip(self.problem.modules, near, strict=True)))
                trial, theta = study.ask(distributions), near
            repeats = repeats + 1 if theta in known else 0
            evaluation = known[theta] if repeats else (yield from self._evaluate(theta))
            if evaluation is None:
                return
            known[theta] = evaluation
            for name, g in self._constraints(evaluation).items():
                trial.set_constraint(name, g)
            study.tell(trial, self._objective(evaluation))
            if not repeats:
                yield
        self._stop("nothing new is suggested")

    def _study(self) -> Any:
        """A study, with theta_0 as `theta0_obs` says."""
        optuna, reference = self._optuna, self.reference
        study = self._empty_study()
        params = dict(zip(self.problem.modules, reference.theta, strict=True))
        if self.theta0_obs == "charged":
            study.enqueue_trial(params)
        if self.theta0_obs == "free":
            self.problem.check_reference_known()
            study.add_trial(
                optuna.trial.create_trial(
                    params=params,
                    distributions=self._distributions(),
                    value=self._objective(reference),
                    constraints=self._constraints(reference),
                )
            )
        return study

    def _empty_study(self) -> Any:
        optuna = self._optuna
        sampler = optuna.samplers.GPSampler(
            seed=self.seed % 2**32,
            n_startup_trials=self.n_startup_trials,
        )
        verbosity = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.WARNING)  # else it logs the study's name
        try:
            return optuna.create_study(sampler=sampler)
        finally:
            optuna.logging.set_verbosity(verbosity)

    def _distributions(self) -> dict[str, Any]:
        categorical = self._optuna.distributions.CategoricalDistribution
        sizes = zip(self.problem.modules, self.problem.space.sizes, strict=True)
        return {module: categorical(range(size)) for module, size in sizes}

    def _constraints(self, evaluation: Evaluation) -> dict[str, float]:
        names = ["g", *(limit.name for limit in self.problem.limits[1:])]
        return dict(zip(names, evaluation.violations, strict=True))

    def _objective(self, evaluation: Evaluation) -> float:
        return evaluation.cost_usd / self.problem.reference_cost_usd

    def settings(self) -> dict[str, Any]:
        """Everything that decides the requests, JSON-serialisable."""
        return {
            **super().settings(),
            "optuna": self._optuna.__version__,
            "n_startup_trials": self.n_startup_trials,
            "theta0_obs": self.theta0_obs,
            "repeats": "known",
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
