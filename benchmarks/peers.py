"""Optimizers of other libraries on the same problems: Optuna, SMAC3, Ax and BoTorch.

They work at the level of the data set, as the competitors of the paper do: a trial is one
configuration on all queries. All get theta_0 as a first trial for nothing, and theta_out is the
best configuration observed to be feasible. A configuration that is asked for again is told again,
for nothing. The constraint is given to each in its own way:

| name | library | constraint |
| --- | --- | --- |
| `optuna_tpe`, `optuna_nsga2` | Optuna | constraints of a trial (Deb's rules) |
| `smac` | SMAC3, random forest | none: an infeasible trial costs 2 c(theta_0) and g / s_0 more |
| `ax` | Ax, its default strategy | outcome constraint |
| `botorch` | BoTorch, categorical kernel fitted | LogConstrainedExpectedImprovement |

`optuna_gp` is a baseline of the package. SMAC3 and Ax come from constraints/peers.txt.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
import warnings
import weakref
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from scope_torch.baselines.dataset_level import DatasetLevelOptimizer, Evaluation
from scope_torch.baselines.optuna_gp import import_optuna
from scope_torch.errors import InputError
from scope_torch.observation import Observation, Request
from scope_torch.problem import SelectionProblem
from scope_torch.search.optimizer import Steps

Theta = tuple[int, ...]
IN_PARALLEL = ("optuna_tpe", "optuna_nsga2", "ax")
MOST_REPEATS = 200  # known configurations in a row; then hardly anything new will come
MOST_CHOICES = 20_000  # configurations of which `botorch` looks at the acquisition of all
SOME_CHOICES = 2_000  # random ones at which it looks where there are more


class Peer(Protocol):
    """A library behind ask and tell; costs are in c(theta_0), g in units of s_0."""

    def ask(self) -> Theta | None:
        """The next configuration; None where all were tried, and it has no more."""
        ...

    def tell(self, theta: Theta, cost: float, g: float) -> None:
        """Its averages; also of one that was not asked for."""
        ...

    def drop(self) -> None:
        """What was asked for last may not be tried."""
        ...


class PeerSearch(DatasetLevelOptimizer):
    """A search that evaluates what a `Peer` asks for.

    Args:
        problem: What to search.
        seed: Seed of the peer and of the query order.
        peer: Name in `PEERS`.
        trials: How many are asked for before the first of them is told, as by workers in parallel.
        settings: Its settings.
    """

    def __init__(
        self, problem: SelectionProblem, seed: int, peer: str, trials: int = 1, **settings: Any
    ) -> None:
        super().__init__(problem, seed=seed, name=peer)
        problem.check_one_constraint(peer)
        if trials > 1 and peer not in IN_PARALLEL:
            raise InputError(f"{peer} has one trial at a time here, not {trials}")
        self._peer: Peer = PEERS[peer](problem, seed, **settings)
        self._trials = trials
        self._known: dict[Theta, Evaluation] = {}

    def _search(self) -> Steps:
        self._tell(self.reference)
        while thetas := [theta for _ in range(self._trials) if (theta := self._to_try())]:
            evaluations = yield from self._evaluate_together(thetas)
            for evaluation in evaluations:
                if evaluation is None:
                    return
                self._tell(evaluation)
            yield
        self._stop("nothing new is asked for")

    def _to_try(self) -> Theta | None:
        """What the peer asks for that is not known, or the nearest to it that may be tried."""
        for _ in range(MOST_REPEATS):
            theta = self._peer.ask()
            if theta is None:
                return None
            if (near := self.allowed_near(theta)) != theta:
                self._peer.drop()
            if near not in self._known:
                return near
            if near == theta:
                self._tell(self._known[theta])
        return None

    def _evaluate_together(
        self, thetas: Sequence[Theta]
    ) -> Generator[list[Request], list[Observation], list[Evaluation | None]]:
        """The evaluations of several configurations, whose requests are made at once."""
        steps = [self._evaluate(theta) for theta in thetas]
        asked = [next(step) for step in steps]
        told = yield [request for requests in asked for request in requests]
        evaluations: list[Evaluation | None] = []
        for step, requests in zip(steps, asked, strict=True):
            own, told = told[: len(requests)], told[len(requests) :]
            try:
                step.send(own)
            except StopIteration as end:
                evaluations.append(end.value)
        return evaluations

    def _tell(self, evaluation: Evaluation) -> None:
        problem = self.problem
        self._known[evaluation.theta] = evaluation
        cost = evaluation.cost_usd / problem.reference_cost_usd
        self._peer.tell(evaluation.theta, cost, evaluation.g / problem.s_0)


class OptunaPeer:
    """A sampler of Optuna."""

    def __init__(self, problem: SelectionProblem, make: Callable[[Any], Any]) -> None:
        self._optuna = import_optuna()
        self._optuna.logging.set_verbosity(self._optuna.logging.WARNING)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # some options are experimental
            self._study = self._optuna.create_study(sampler=make(self._optuna.samplers))
        categorical = self._optuna.distributions.CategoricalDistribution
        self._names = problem.modules
        self._distributions = {
            name: categorical(range(size))
            for name, size in zip(problem.modules, problem.space.sizes, strict=True)
        }
        self._asked: list[tuple[Theta, Any]] = []  # trials without an answer

    def ask(self) -> Theta:
        """The next configuration."""
        trial = self._study.ask(self._distributions)
        theta = tuple(int(trial.params[name]) for name in self._names)
        self._asked.append((theta, trial))
        return theta

    def tell(self, theta: Theta, cost: float, g: float) -> None:
        """Its averages."""
        trial = taken(self._asked, theta)
        if trial is None:
            trial = self._optuna.trial.create_trial(
                params=dict(zip(self._names, theta, strict=True)),
                distributions=self._distributions,
                value=cost,
                constraints={"g": g},
            )
            self._study.add_trial(trial)
            return
        trial.set_constraint("g", g)
        self._study.tell(trial, cost)

    def drop(self) -> None:
        """A failed trial."""
        _, trial = self._asked.pop()
        self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)


def taken(asked: list[tuple[Theta, Any]], theta: Theta) -> Any:
    """The first trial of a configuration, which leaves the list; None if there is none."""
    at = next((i for i, (one, _) in enumerate(asked) if one == theta), None)
    return None if at is None else asked.pop(at)[1]


def optuna_tpe(
    problem: SelectionProblem, seed: int, n_startup: int = 10, constant_liar: int = 0
) -> OptunaPeer:
    """Optuna's tree of Parzen estimators, multivariate; `constant_liar` for trials in parallel."""
    return OptunaPeer(
        problem,
        lambda samplers: samplers.TPESampler(
            seed=seed,
            n_startup_trials=n_startup,
            multivariate=True,
            constant_liar=bool(constant_liar),
        ),
    )


def optuna_nsga2(problem: SelectionProblem, seed: int, population: int = 10) -> OptunaPeer:
    """Optuna's genetic algorithm NSGA-II."""
    return OptunaPeer(
        problem, lambda samplers: samplers.NSGAIISampler(seed=seed, population_size=population)
    )


def _never_called(config: Any, seed: int = 0) -> float:  # noqa: ARG001
    """SMAC wants a function, but is used by ask and tell."""
    raise RuntimeError("SMAC called the function that it was to ask about")


class SmacPeer:
    """SMAC3's facade for hyperparameters: a random forest and log expected improvement."""

    def __init__(self, problem: SelectionProblem, seed: int, n_startup: int = 10) -> None:
        from ConfigSpace import CategoricalHyperparameter, ConfigurationSpace
        from smac import HyperparameterOptimizationFacade, Scenario

        logging.getLogger("smac").setLevel(logging.ERROR)
        self._names = problem.modules
        self._space = ConfigurationSpace(seed=seed)
        for name, size in zip(problem.modules, problem.space.sizes, strict=True):
            self._space.add(CategoricalHyperparameter(name, list(range(size))))
        folder = tempfile.mkdtemp()
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        scenario = Scenario(
            self._space,
            deterministic=True,
            n_trials=100_000,
            seed=seed,
            output_directory=Path(folder),
        )
        facade = HyperparameterOptimizationFacade
        self._smac = facade(
            scenario,
            _never_called,
            initial_design=facade.get_initial_design(scenario, n_configs=n_startup),
            logging_level=False,
            overwrite=True,
        )
        self._info: Any = None

    def ask(self) -> Theta | None:
        """The next configuration; none where all were tried."""
        from smac.main.exceptions import ConfigurationSpaceExhaustedException

        try:
            self._info = self._smac.ask()
        except ConfigurationSpaceExhaustedException:
            return None
        return tuple(int(self._info.config[name]) for name in self._names)

    def tell(self, theta: Theta, cost: float, g: float) -> None:
        """Its averages; SMAC knows no constraints."""
        from ConfigSpace import Configuration
        from smac.runhistory import TrialInfo, TrialValue

        info = self._info
        if info is None:
            values = dict(zip(self._names, theta, strict=True))
            info = TrialInfo(Configuration(self._space, values=values), seed=0)
        self._smac.tell(info, TrialValue(cost=cost if g <= 0 else 2 + g))
        self._info = None

    def drop(self) -> None:
        """SMAC3 counts it as running, so that it is not asked for again."""
        self._info = None


class AxPeer:
    """Ax's client with its default strategy."""

    def __init__(self, problem: SelectionProblem, seed: int, n_startup: int = 10) -> None:
        from ax.api.client import Client
        from ax.api.configs import ChoiceParameterConfig

        logging.getLogger("ax").setLevel(logging.ERROR)
        self._names, self._size = problem.modules, problem.space.size
        self._named: set[Theta] = set()
        self._client = Client(random_seed=seed)
        self._client.configure_experiment(
            parameters=[
                ChoiceParameterConfig(
                    name=name, values=list(range(size)), parameter_type="int", is_ordered=False
                )
                for name, size in zip(problem.modules, problem.space.sizes, strict=True)
            ]
        )
        self._client.configure_optimization(objective="-cost", outcome_constraints=["g <= 0"])
        self._client.configure_generation_strategy(
            method="fast", initialization_budget=n_startup, initialization_random_seed=seed
        )
        self._asked: list[tuple[Theta, Any]] = []  # numbers of trials without an answer

    def ask(self) -> Theta | None:
        """The next configuration; none where all were tried."""
        from ax.exceptions.core import SearchSpaceExhausted

        if len(self._named) == self._size:  # Ax takes minutes to say so
            return None
        try:
            ((index, values),) = self._client.get_next_trials(max_trials=1).items()
        except SearchSpaceExhausted:
            return None
        theta = tuple(int(values[name]) for name in self._names)
        self._asked.append((theta, index))
        self._named.add(theta)
        return theta

    def tell(self, theta: Theta, cost: float, g: float) -> None:
        """Its averages."""
        index = taken(self._asked, theta)
        self._named.add(theta)
        if index is None:
            index = self._client.attach_trial(dict(zip(self._names, theta, strict=True)))
        self._client.complete_trial(index, raw_data={"cost": (cost, 0.0), "g": (g, 0.0)})

    def drop(self) -> None:
        """An abandoned trial."""
        self._client.mark_trial_abandoned(self._asked.pop()[1])


class BoTorchPeer:
    """Plain BoTorch: a GP with a fitted categorical kernel for each output, constrained log EI."""

    def __init__(self, problem: SelectionProblem, seed: int, n_startup: int = 10) -> None:
        self._space, self._n_startup, rule = problem.space, n_startup, problem.rule
        self._rule, self._index = rule, range(self._space.size)  # of what may be tried
        if rule is not None and rule.index is not None:
            self._index = rule.index.tolist()
        self._rng = np.random.default_rng(seed)
        self._told: dict[Theta, tuple[float, float]] = {}
        torch.manual_seed(seed)

    def ask(self) -> Theta | None:
        """The next: a random new one at first, then the best by the acquisition; None if none."""
        if len(self._told) <= self._n_startup and len(self._told) < len(self._index):
            while (theta := self._random()) in self._told:
                pass
            return theta
        choices = self._choices()
        if not len(choices):
            return None
        values = self._acquisition()(choices[:, None].double())
        row = choices[int(values.argmax())]
        return tuple(int(code) for code in row)

    def _random(self) -> Theta:
        return self._space.theta_at(self._index[int(self._rng.integers(len(self._index)))])

    def _choices(self) -> torch.Tensor:
        """All configurations that were not tried, or a random part and neighbours of the best."""
        size, index = len(self._index), self._index
        if size > MOST_CHOICES:
            index = [index[int(i)] for i in self._rng.integers(size, size=SOME_CHOICES)]
        rows = [self._space.theta_at(i) for i in index]
        best = min(self._told, key=lambda t: (self._told[t][1] > 0, self._told[t][0]))
        for i, count in enumerate(self._space.sizes):
            rows += [(*best[:i], code, *best[i + 1 :]) for code in range(count)]
        if self._rule is not None:
            rows = [row for row in rows if self._rule(row)]
        return torch.tensor([row for row in dict.fromkeys(rows) if row not in self._told])

    def _acquisition(self) -> Any:
        from botorch.acquisition.analytic import LogConstrainedExpectedImprovement
        from botorch.fit import fit_gpytorch_mll
        from botorch.models import MixedSingleTaskGP, ModelListGP
        from gpytorch.mlls import SumMarginalLogLikelihood

        x = torch.tensor(list(self._told), dtype=torch.float64)
        y = torch.tensor(list(self._told.values()), dtype=torch.float64)
        dims = list(range(x.shape[1]))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = ModelListGP(*(MixedSingleTaskGP(x, y[:, [k]], cat_dims=dims) for k in (0, 1)))
            fit_gpytorch_mll(SumMarginalLogLikelihood(model.likelihood, model))
        feasible = y[y[:, 1] <= 0, 0]
        best = float(feasible.min())  # theta_0 is among them
        return LogConstrainedExpectedImprovement(model, best, 0, {1: (None, 0.0)}, maximize=False)

    def tell(self, theta: Theta, cost: float, g: float) -> None:
        """Its averages."""
        self._told[theta] = (cost, g)

    def drop(self) -> None:
        """It asks for none, unless Theta is too large for a list."""


PEERS: dict[str, Callable[..., Peer]] = {
    "optuna_tpe": optuna_tpe,
    "optuna_nsga2": optuna_nsga2,
    "smac": SmacPeer,
    "ax": AxPeer,
    "botorch": BoTorchPeer,
}


LIBRARIES = {"optuna_tpe": "optuna", "optuna_nsga2": "optuna", "smac": "smac", "ax": "ax"}


def make_peer(text: str, problem: SelectionProblem, seed: int) -> PeerSearch:
    """A search from its name and settings, such as `smac n_startup=5`."""
    name, *given = text.split()
    settings = {key: int(value) for key, _, value in (word.partition("=") for word in given)}
    return PeerSearch(problem, seed, name, **settings)
