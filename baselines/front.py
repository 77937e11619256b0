"""Competitors of scope_front: searches for the front of cost and quality on whole data sets.

They are compared by `benchmarks/results/front.py`. They know no threshold, so they are no methods
of the command line. All evaluate a configuration on all queries. A configuration that is suggested
again costs nothing: its averages are told again.
"""

from __future__ import annotations

import importlib
import math
import warnings
from abc import abstractmethod
from collections.abc import Generator
from typing import Any

import torch
from botorch.acquisition.multi_objective.logei import qLogNoisyExpectedHypervolumeImprovement
from botorch.fit import fit_gpytorch_mll
from botorch.models import MixedSingleTaskGP, ModelListGP
from botorch.models.transforms import Standardize
from botorch.optim import optimize_acqf_discrete
from botorch.sampling import SobolQMCNormalSampler
from gpytorch.mlls import SumMarginalLogLikelihood
from torch import Tensor

from scope_torch.baselines.dataset_level import DatasetLevelOptimizer, Evaluation
from scope_torch.problem import SelectionProblem
from scope_torch.search.hypervolume import non_dominated
from scope_torch.search.optimizer import Steps

Suggestions = Generator[tuple[int, ...], Evaluation, None]
_LEAST_USD = 1e-12  # free configurations have no logarithm


class FrontBaseline(DatasetLevelOptimizer):
    """Evaluates what `_suggest` yields, and sends it the evaluation.

    Args:
        problem: What to search.
        seed: Decides everything that is random.
        name: Name in tables.
        most_repeats: So many suggestions in a row may be known already; then comes a random one
            that is not.
    """

    def __init__(
        self, problem: SelectionProblem, *, seed: int, name: str, most_repeats: int = 100
    ) -> None:
        super().__init__(problem, seed=seed, name=name)
        self._most_repeats = most_repeats
        self.known: dict[tuple[int, ...], Evaluation] = {}

    @property
    def front(self) -> list[tuple[int, ...]]:
        """The evaluated configurations that no other beats, by rising cost."""
        known = list(self.known.values())
        kept = non_dominated([e.cost_usd for e in known], [-e.g for e in known])
        return [known[i].theta for i in kept]

    @abstractmethod
    def _suggest(self) -> Suggestions:
        """Yields configurations and is sent their evaluations."""

    def _search(self) -> Steps:
        suggestions, repeats = self._suggest(), 0
        theta = next(suggestions, None)
        while theta is not None:
            theta = self.allowed_near(theta)
            if theta not in self.known or repeats >= self._most_repeats:
                left = self._left()
                if not left:
                    break
                theta, repeats = theta if theta not in self.known else left[0], 0
                evaluation = yield from self._evaluate(theta)
                if evaluation is None:
                    return
                self.known[theta] = evaluation
            repeats += 1
            if len(self.known) == self.problem.num_allowed:
                break
            try:
                theta = suggestions.send(self.known[theta])
            except StopIteration:
                break
        self._stop("every configuration was evaluated")

    def _left(self) -> list[tuple[int, ...]]:
        """The configurations not yet evaluated, in a random order given by the seed."""
        order = map(self.problem.space.theta_at, self.tie_order().tolist())
        return [theta for theta in order if theta not in self.known]


class RandomFront(FrontBaseline):
    """Random search without replacement; arguments as in `FrontBaseline`."""

    def __init__(self, problem: SelectionProblem, *, seed: int, name: str = "random") -> None:
        super().__init__(problem, seed=seed, name=name)

    def _suggest(self) -> Suggestions:
        for theta in self._left():
            _ = yield theta


class OptunaFront(FrontBaseline):
    """A sampler of Optuna on two objectives, log cost and quality; a categorical each module.

    Args:
        problem: See `FrontBaseline`.
        seed: See `FrontBaseline`.
        sampler: Name of a class of `optuna.samplers`: `NSGAIISampler` or `GPSampler`.
        options: Arguments of the sampler.
        name: Name in tables.
        most_repeats: See `FrontBaseline`.
    """

    def __init__(
        self,
        problem: SelectionProblem,
        *,
        seed: int,
        sampler: str,
        options: Any = None,
        name: str,
        most_repeats: int = 100,
    ) -> None:
        super().__init__(problem, seed=seed, name=name, most_repeats=most_repeats)
        self._sampler, self._options = sampler, dict(options or {})

    def _suggest(self) -> Suggestions:
        optuna: Any = importlib.import_module("optuna")
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # experimental
            sampler = getattr(optuna.samplers, self._sampler)(
                seed=self.seed % 2**32, **self._options
            )
            study = optuna.create_study(sampler=sampler, directions=["minimize", "maximize"])
        sizes = zip(self.problem.modules, self.problem.space.sizes, strict=True)
        categorical = optuna.distributions.CategoricalDistribution
        distributions = {module: categorical(range(size)) for module, size in sizes}
        while True:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                trial = study.ask(distributions)
            evaluation = yield tuple(trial.params[module] for module in self.problem.modules)
            study.tell(trial, [log_cost(evaluation), -evaluation.g])


class LogNEHVI(FrontBaseline):
    """BoTorch's qLogNEHVI on log cost and quality, over all configurations not yet evaluated.

    Each objective has a `MixedSingleTaskGP` whose dimensions are all categorical, fitted before
    every choice.

    Args:
        problem: See `FrontBaseline`.
        seed: See `FrontBaseline`.
        num_first: Random evaluations before the first model.
        per_usd: Whether the improvement is divided by the predicted cost.
        name: Name in tables.
    """

    def __init__(
        self,
        problem: SelectionProblem,
        *,
        seed: int,
        num_first: int = 5,
        per_usd: bool = False,
        name: str = "qlognehvi",
    ) -> None:
        super().__init__(problem, seed=seed, name=name)
        self._num_first, self._per_usd = num_first, per_usd

    def _suggest(self) -> Suggestions:
        for theta in self._left()[: self._num_first]:
            _ = yield theta
        while left := self._left():
            yield left[self._choose(torch.tensor(left, dtype=torch.float64))]

    def _choose(self, choices: Tensor) -> int:
        X = torch.tensor(list(self.known), dtype=torch.float64)
        Y = torch.tensor([(-log_cost(e), -e.g) for e in self.known.values()], dtype=torch.float64)
        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            warnings.simplefilter("ignore")  # of fitting
            torch.manual_seed(self.seed)
            model = self._fitted(X, Y)
            acquisition = qLogNoisyExpectedHypervolumeImprovement(
                model,
                ref_point=Y.amin(0) - 0.1 * (Y.amax(0) - Y.amin(0)),
                X_baseline=X,
                sampler=SobolQMCNormalSampler(torch.Size([64]), seed=self.seed % 2**31),
                prune_baseline=True,
            )
            if not self._per_usd:
                best, _ = optimize_acqf_discrete(acquisition, q=1, choices=choices)
                return int((choices == best).all(-1).nonzero()[0])
            with torch.no_grad():
                value = acquisition(choices[:, None])
                return int((value + model.posterior(choices).mean[:, 0]).argmax())

    def _fitted(self, X: Tensor, Y: Tensor) -> ModelListGP:
        dims = list(range(X.shape[-1]))
        models = [
            MixedSingleTaskGP(X, column[:, None], cat_dims=dims, outcome_transform=Standardize(1))
            for column in Y.T
        ]
        model = ModelListGP(*models)
        fit_gpytorch_mll(SumMarginalLogLikelihood(model.likelihood, model))
        return model


def log_cost(evaluation: Evaluation) -> float:
    """Log of the average cost in USD."""
    return math.log(max(evaluation.cost_usd, _LEAST_USD))
