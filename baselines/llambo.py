"""LLAMBO: Bayesian optimisation in which an LLM proposes and predicts."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypedDict

import torch
from torch import Tensor

from scope_torch.baselines.dataset_level import DatasetLevelOptimizer
from scope_torch.baselines.llambo_prompts import HistoryLine, Message, Prompts, Theta
from scope_torch.baselines.llambo_score import Prediction, scores_of, target_cost
from scope_torch.baselines.llm_backends import Backend, BackendConfig, backend_config, make_backend
from scope_torch.baselines.llm_transcript import Replies
from scope_torch.errors import InputError, whole_number
from scope_torch.llm.prices import load_llms
from scope_torch.problem import SelectionProblem
from scope_torch.search.optimizer import Steps
from scope_torch.space import check_seed, tie_rank


class Sampling(TypedDict):
    """Sampling temperature, where the LLM allows one, and the largest length of a reply."""

    temperature: float
    max_tokens: int


WARM_START = Sampling(temperature=0.8, max_tokens=2000)
CANDIDATE = Sampling(temperature=0.8, max_tokens=500)
PREDICTION = Sampling(temperature=0.7, max_tokens=32)


class LLAMBO(DatasetLevelOptimizer):
    """An LLM proposes configurations and predicts each several times; the best is evaluated.

    The score of a configuration is the expected improvement of the cost over the best observed
    feasible one, times the probability of feasibility; both follow from mean and spread of the
    predictions. Unreadable replies are asked for again; what is still missing is filled up with
    configurations in the seeded order.

    Reference: Liu et al. 2024, arXiv 2402.03921; the constraint is handled as in the paper
    (appendix, adaptation details). `make_llambo` builds one from plain values.

    Args:
        problem: What to search.
        backend: The LLM.
        prompts: Writes the prompts and reads the replies.
        seed: Decides the query order, the order of history lines and ties.
        price_usd: The LLM's own prices in USD per million tokens (input, output), if known.
        n_init: Configurations asked for at the start.
        num_candidates: Configurations asked for in each iteration.
        min_candidates: Least number of valid new ones. If there are fewer, the LLM is asked again;
            then they are filled up.
        num_retries: How often the LLM is asked again.
        num_templates: Prompts for each request; each shows the history in its own random order.
        num_predictions: Predictions of a candidate from each of these prompts.
        alpha: The LLM is asked for a cost below the best by this share of the observed range.
        name: Name in results; None: `llambo`, or `LLAMBO[stub]` with the stand-in.

    Raises:
        InputError: If a setting is outside its range, or the name hides the stand-in.
    """

    def __init__(
        self,
        problem: SelectionProblem,
        backend: Backend,
        prompts: Prompts,
        *,
        seed: int,
        price_usd: tuple[float, float] | None = None,
        n_init: int = 5,
        num_candidates: int = 10,
        min_candidates: int = 5,
        num_retries: int = 3,
        num_templates: int = 2,
        num_predictions: int = 10,
        alpha: float = 0.1,
        name: str | None = None,
    ) -> None:
        name = _checked_name(name, backend.kind)
        counts = {
            "n_init": n_init,
            "num_candidates": num_candidates,
            "min_candidates": min_candidates,
            "num_retries": num_retries,
            "num_templates": num_templates,
            "num_predictions": num_predictions,
        }
        self._counts = {
            key: whole_number(key, value, 0 if key == "num_retries" else 1)
            for key, value in counts.items()
        }
        if not -1 <= alpha <= 1:
            raise InputError(f"alpha={alpha} must lie in [-1, 1]")
        self._backend, self._prompts, self._alpha = backend, prompts, alpha
        self._price_usd = price_usd
        self._rng = random.Random(seed)
        self._usage = Replies(())
        self._num_calls = self._num_replies = self._num_malformed = self._num_repeated = 0
        self._num_padded = self._num_unpredicted = self._num_forbidden = 0
        self._order: Tensor | None = None  # pi
        problem.check_one_constraint(name)
        super().__init__(problem, seed=seed, name=name)

    def _search(self) -> Steps:
        for theta in self._warm_start():
            if (yield from self._evaluate(theta)) is None:
                return
        yield
        while self._num_left():
            theta = self._best_of(self._candidates())
            if (yield from self._evaluate(theta)) is None:
                return
            yield
        self._stop("every configuration was evaluated")

    def _evaluated(self) -> set[Theta]:
        """theta_0 and all evaluated configurations: none is evaluated again."""
        return {self.problem.theta_ref, *(e.theta for e in self.evaluations)}

    def _num_left(self) -> int:
        return self.problem.num_allowed - len(self._evaluated())

    def _history(self) -> list[HistoryLine]:
        """The known averages in a fresh random order."""
        known = self._known()
        return self._rng.sample(known, len(known))

    def _known(self) -> list[HistoryLine]:
        """The averages of theta_0 and of all evaluated configurations."""
        s_0 = self.problem.s_0
        return [
            HistoryLine(e.theta, e.cost_usd, s_0 - e.g)
            for e in [self.reference, *self.merged_evaluations()]
        ]

    def _warm_start(self) -> list[Theta]:
        """Configurations to begin with; the budget is untouched until there are any."""
        count = min(self._counts["n_init"], self._num_left())
        found: dict[Theta, None] = {}
        for _ in range(1 + self._counts["num_retries"]):
            if len(found) >= count:
                break
            for text in self._ask(self._prompts.warm_start(count), 1, **WARM_START):
                thetas = self._prompts.parse_warm_start(text)
                self._num_malformed += thetas is None
                self._add_new(thetas or [], found)
        return self._padded(found, count)[:count]

    def _candidates(self) -> list[Theta]:
        """New distinct configurations: at least `min_candidates`, or all that are left."""
        templates = self._counts["num_templates"]
        least = min(self._counts["min_candidates"], self._num_left())
        n = -(-self._counts["num_candidates"] // templates)
        found: dict[Theta, None] = {}
        for _ in range(1 + self._counts["num_retries"]):
            if len(found) >= least:
                break
            for _ in range(templates):
                prompt = self._prompts.candidate(self._history(), self._target_cost_usd())
                for text in self._ask(prompt, n, **CANDIDATE):
                    theta = self._prompts.parse_candidate(text)
                    self._num_malformed += theta is None
                    self._add_new([] if theta is None else [theta], found)
        return self._padded(found, least)

    def _add_new(self, thetas: Sequence[Theta], found: dict[Theta, None]) -> None:
        """Adds those that are allowed, and neither evaluated nor found; counts the others."""
        evaluated = self._evaluated()
        for theta in thetas:
            if not self.problem.is_allowed(theta):
                self._num_forbidden += 1
            elif theta in evaluated or theta in found:
                self._num_repeated += 1
            else:
                found[theta] = None

    def _padded(self, found: Mapping[Theta, None], count: int) -> list[Theta]:
        """`found`, filled up to `count` with new configurations in the seeded order."""
        missing = max(0, count - len(found))
        used = self._evaluated() | set(found)
        unused = (theta for theta in self._tie_ordered() if theta not in used)
        self._num_padded += missing
        return [*found, *itertools.islice(unused, missing)]

    def _tie_ordered(self) -> Iterator[Theta]:
        """All configurations in the seeded order; sorted when first needed."""
        if self._order is None:
            self._order = self.tie_order()
        for index in self._order:
            yield tuple(self.problem.space.unrank(index).tolist())

    def _target_cost_usd(self) -> float:
        best = self.best_observed_feasible().cost_usd
        return target_cost(best, [m.cost_usd for m in self._known()], self._alpha)

    def _best_of(self, candidates: Sequence[Theta]) -> Theta:
        """The candidate of highest score; of equal ones the first in the seeded order."""
        predictions = self._predictions(candidates)
        problem, best = self.problem, self.best_observed_feasible()
        if not any(predictions):
            self._num_unpredicted += 1
        scores = scores_of(
            predictions,
            best_cost_usd=best.cost_usd,
            s_0=problem.s_0,
            cost_scale_usd=problem.reference_cost_usd,
        )
        highest = max(scores)
        tied = [
            theta
            for theta, score in zip(candidates, scores, strict=True)
            if score >= highest - 1e-9 * abs(highest)
        ]
        keys = tie_rank(problem.space.rank(torch.tensor(tied)), self.seed)
        return tied[int(keys.argmin())]

    def _predictions(self, candidates: Sequence[Theta]) -> list[list[Prediction]]:
        """The readable predictions of each candidate."""
        predictions: list[list[Prediction]] = [[] for _ in candidates]
        for _ in range(self._counts["num_templates"]):
            history = self._history()
            for theta, drawn in zip(candidates, predictions, strict=True):
                prompt = self._prompts.predict(history, theta)
                for text in self._ask(prompt, self._counts["num_predictions"], **PREDICTION):
                    prediction = self._prompts.parse_prediction(text)
                    if prediction is None:
                        self._num_malformed += 1
                    else:
                        drawn.append(prediction)
        return predictions

    def _ask(
        self, messages: list[Message], n: int, *, temperature: float, max_tokens: int
    ) -> tuple[str, ...]:
        completion = self._backend.complete(messages, n, temperature, max_tokens)
        self._num_calls += 1
        self._num_replies += len(completion.texts)
        self._usage += replace(completion, texts=())
        return completion.texts

    def settings(self) -> dict[str, Any]:
        """Everything that decides the requests, JSON-serialisable."""
        prompts = self._prompts
        names = {name for llms in self.problem.llms for name in llms}
        prices = {name: list(p) for name, p in (prompts.prices or {}).items() if name in names}
        return {
            **super().settings(),
            **self._counts,
            "alpha": self._alpha,
            "warm_start": WARM_START,
            "candidate": CANDIDATE,
            "prediction": PREDICTION,
            "system": prompts.system,
            "dataset": prompts.dataset,
            "prices": prices,
            "backend": self._backend.settings(),
        }

    def report(self) -> dict[str, Any]:
        """For result.json: also the LLM's own bill, which is no part of the search spend."""
        usage, cost_usd = self._usage, None
        if self._price_usd is not None and not usage.requests_without_usage:
            price_in, price_out = self._price_usd
            tokens = usage.prompt_tokens * price_in + usage.completion_tokens * price_out
            cost_usd = tokens / 1e6
        forbidden = {} if self.problem.rule is None else {"llm_forbidden": self._num_forbidden}
        return {
            **super().report(),
            **forbidden,
            "llm_backend": self._backend.kind,
            "llm_prompts": self._num_calls,
            "llm_replies": self._num_replies,
            "llm_malformed": self._num_malformed,
            "llm_repeated": self._num_repeated,
            "llm_unpredicted_iterations": self._num_unpredicted,
            "padded": self._num_padded,
            "llm_prompt_tokens": usage.prompt_tokens,
            "llm_completion_tokens": usage.completion_tokens,
            "llm_requests": usage.requests,
            "llm_requests_without_usage": usage.requests_without_usage,
            "llm_cost_usd": cost_usd,
        }


def method_name(kind: str) -> str:
    """Name of the method with a kind of backend; the name shows the stand-in."""
    return "LLAMBO[stub]" if kind == "stub" else "llambo"


def _checked_name(name: str | None, kind: str) -> str:
    if name is not None and kind == "stub" and "[stub]" not in name:
        raise InputError(
            f"name={name!r} hides that the LLM is a stand-in; call it {method_name(kind)!r}"
        )
    return method_name(kind) if name is None else name


def make_llambo(
    problem: SelectionProblem,
    *,
    seed: int,
    backend: BackendConfig | Mapping[str, Any] | None = None,
    system: str = "",
    dataset: str = "",
    prices: Mapping[str, Sequence[float]] | None = None,
    **settings: Any,
) -> LLAMBO:
    """Builds LLAMBO from plain values, such as those of a config file.

    Args:
        problem: What to search.
        seed: Decides the query order, the order of history lines and ties.
        backend: Fields of `llm_backends.BackendConfig`; None for the stand-in.
        system: Description of the compound system, for the prompts.
        dataset: Description of its queries, for the prompts.
        prices: LLM name to (input, output) price in USD per million tokens, for the prompts; None
            for those of `scope_torch/data/llms.toml`. An LLM without an entry is shown without a
            price.
        settings: Further arguments of `LLAMBO`.

    Raises:
        InputError: If a value is wrong.

    Examples:
        >>> import scope_torch as st
        >>> from scope_torch.tasks.synthetic import synthetic_task
        >>> task = synthetic_task()
        >>> search = make_llambo(task.problem, seed=0)  # the stand-in answers
        >>> result = st.run(task.problem, search, task.evaluator, budget_usd=1.0)
    """
    seed = check_seed(seed)
    if not isinstance(backend, BackendConfig):
        backend = backend_config(backend or {})
    price_usd = None
    if backend.price_input is not None and backend.price_output is not None:
        price_usd = (backend.price_input, backend.price_output)
    return LLAMBO(
        problem,
        make_backend(backend, seed),
        Prompts(
            problem, system, dataset, _checked_prices(_list_prices() if prices is None else prices)
        ),
        seed=seed,
        price_usd=price_usd,
        **settings,
    )


def _list_prices() -> dict[str, tuple[float, float]]:
    llms = load_llms().values()
    return {llm.name: (llm.input_usd_per_mtok, llm.output_usd_per_mtok) for llm in llms}


def _checked_prices(prices: Mapping[str, Sequence[float]]) -> dict[str, tuple[float, float]]:
    checked = {}
    for name, pair in prices.items():
        try:
            price_in, price_out = (float(price) for price in pair)
        except (TypeError, ValueError):
            price_in = price_out = math.nan
        if not (0 <= price_in < math.inf and 0 <= price_out < math.inf):
            raise InputError(
                f"prices: {name!r} has {pair!r}; give [input, output] in USD per million tokens"
            )
        checked[name] = (price_in, price_out)
    return checked
