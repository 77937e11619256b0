"""A selector for AgentOpt: one word changes, and the search is ours.

It needs agentopt-py 0.1.0, `pip install 'scope-torch[peers]'`. See docs/howto/from-agentopt.md.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from importlib import import_module
from threading import Lock
from typing import Any, NamedTuple

from scope_torch.constraints import QUALITY, Constraint
from scope_torch.errors import InputError
from scope_torch.evaluators.event_loop import result_of
from scope_torch.llm.price_list import PriceList
from scope_torch.llm.prices import LLMInfo
from scope_torch.observation import Observation
from scope_torch.results.result import RunResult
from scope_torch.runs.identity import identity_of
from scope_torch.selection.arguments import Reference
from scope_torch.selection.face import Selection
from scope_torch.selection.setup import cheapest_by_price

logger = logging.getLogger(__name__)


def _of_agentopt(name: str) -> Any:
    """A module of AgentOpt; None if it is not installed: then no selector can be made."""
    with suppress(ImportError):
        return import_module(f"agentopt.{name}")
    return None


model_price, model_selection = _of_agentopt("model_price"), _of_agentopt("model_selection")
_BASE: Any = object if model_selection is None else model_selection.BaseModelSelector

# Of `select`; the rest is decided here, or is what AgentOpt calls by another name.
_OTHERS = {field.name for field in fields(Selection)} - {
    *("app", "models", "dataset", "metric", "prices", "endpoint", "judge"),
    *("repeat", "on_error", "concurrency", "executor"),
}
_LOSS = 0.05
_NO_LIMIT_USD = 1e9
_DEPLOYED = 100_000  # queries for which a search without a budget has to pay
_LATENCY = "latency_s"
_TOKENS = "input_tokens", "output_tokens"


_UNSEEN = (
    "AgentOpt's tracker saw no call of an LLM, so nobody knows what a sample costs. It sees "
    "requests by httpx that are not streamed: openai >= 3 and anthropic >= 1 send them by httpx2. "
    "Install openai<3, anthropic<1; or use scope_torch.select with endpoint=. To select again, "
    "make another ScopeSelector: the tracker of this one has stopped"
)


class Sample(NamedTuple):
    """One element of AgentOpt's data set, with its position."""

    number: int
    input: Any
    expected: Any


class ScopeSelector(_BASE):
    """Chooses the cheapest combination whose accuracy is close to that of a trusted one.

    It takes the place of any other selector of AgentOpt, and returns the same `SelectionResults`.
    The trusted combination, the reference, answers all samples first. Then `select` searches: one
    sample of one combination at a time is run by AgentOpt, and its tracker counts the tokens. A
    sample that fails has score 0 at the price of its calls; AgentOpt's selectors leave it out.

    Args:
        agent: As AgentOpt takes it: a class with `__init__(self, models)` and `run(self, input)`,
            which may be `async def`.
        models: Candidates by node. Those of a node have different names.
        eval_fn: `eval_fn(expected, actual)`, in [0, 1].
        dataset: Pairs (input, expected).
        model_prices: USD per million tokens by LLM, {"gpt-4o": {"input_price": 2.5,
            "output_price": 10}}. LLMs without one have AgentOpt's price, or else the published one.
        node_descriptions: As AgentOpt takes them; not used.
        tracker: AgentOpt's `LLMTracker`; None for a new one.
        reference: The names that you trust, by node, or one for all nodes. None: the dearest
            candidates by price.
        max_quality_loss: Epsilon, relative to the reference. None: 0.05, unless `min_quality`,
            `constraints` or `objective` says what you want.
        budget_usd: The search ends when its calls cost this much, at the prices of tokens: also a
            reply that AgentOpt kept has its price. None: when it does not pay for 100,000 queries.
        settings: Other arguments of `scope_torch.select`, such as `objective`, `min_quality`,
            `constraints`, `deployment_queries`, `base`, `holdout`, `in_flight`, `optimizer`,
            `run_dir`, `name`, `seed`, `progress`, `callbacks`.

    Attributes:
        result: What `select` returned; None before `select_best`. Print it: it says why.

    Raises:
        ImportError: If agentopt-py is not installed.
        InputError: If a setting is unknown.
    """

    def __init__(
        self,
        agent: Any = None,
        models: dict[str, list[Any]] | None = None,
        eval_fn: Any = None,
        dataset: Any = None,
        model_prices: dict[str, dict[str, float]] | None = None,
        node_descriptions: dict[str, str] | None = None,
        tracker: Any = None,
        *,
        reference: Reference | None = None,
        max_quality_loss: float | None = None,
        budget_usd: float | None = None,
        **settings: Any,
    ) -> None:
        if model_selection is None:
            raise ImportError("ScopeSelector needs agentopt-py: pip install 'scope-torch[peers]'")
        if unknown := sorted(settings.keys() - _OTHERS):
            raise InputError(
                f"ScopeSelector takes no {', '.join(unknown)}; besides AgentOpt's arguments it "
                f"takes {', '.join(sorted(_OTHERS))}"
            )
        super().__init__(
            agent=agent,
            models=models,
            eval_fn=eval_fn,
            dataset=dataset,
            model_prices=model_prices,
            node_descriptions=node_descriptions,
            tracker=tracker,
        )
        self.result: RunResult | None = None
        settings.setdefault("repeats", 0)  # AgentOpt keeps answers: the second is the first
        self._reference, self._graded_by = reference, eval_fn
        self._settings = _settings(max_quality_loss, budget_usd, settings)
        self._agents: dict[str, Any] = {}
        self._num_failed, self._has_seen = 0, False  # a call of an LLM
        self._changing = Lock()

    def _run_selection(self, parallel: bool = False, max_concurrent: int = 20) -> Any:
        """Searches; AgentOpt's `select_best` calls it.

        Raises:
            InputError: See `select`; if an LLM has no price; or if no call was seen.
        """
        self._num_failed, self._has_seen = 0, False
        candidates = {node: self._by_name(node) for node in self._node_names}
        prices = {name: self._price(name) for names in candidates.values() for name in names}
        reference = self._reference
        if reference is None:  # the cheapest by the negative prices is the dearest
            reference = cheapest_by_price(
                {node: list(names) for node, names in candidates.items()},
                lambda name: (-prices[name][0], -prices[name][1]),
            )

        def run_sample(models: dict[str, str], sample: Sample) -> dict[str, Any]:
            return self._run_sample(
                {node: candidates[node][name] for node, name in models.items()}, sample
            )

        # Names the problem, and the system in a journal.
        run_sample.__name__ = run_sample.__qualname__ = getattr(self.agent, "__name__", "agent")
        settings = dict(self._settings)
        settings.setdefault("metric_version", self._graded_by and identity_of(self._graded_by))
        selection = Selection(
            run_sample,
            models={node: list(names) for node, names in candidates.items()},
            dataset=[Sample(index, *pair) for index, pair in enumerate(self.dataset)],
            reference=reference,
            prices=PriceList({name: LLMInfo(name, *usd) for name, usd in prices.items()}),
            concurrency=max_concurrent if parallel else 1,
            **settings,
        )
        self.result = selection.run()
        if self._num_failed:
            logger.warning("%d samples failed and have score 0", self._num_failed)
            self.result = replace(self.result, num_failed=self._num_failed)
        return self._reports(self.result, candidates)

    def _by_name(self, node: str) -> dict[str, Any]:
        """The candidates of a node by AgentOpt's names for them."""
        named = {self._candidate_label(candidate): candidate for candidate in self._models[node]}
        if len(named) < len(self._models[node]):
            raise InputError(
                f"two candidates of {node!r} have the same name, see {list(named)}; a candidate's "
                "name is the text itself, or its model, model_name, id or name"
            )
        return named

    def _price(self, llm: str) -> tuple[float, float]:
        """USD per million tokens, in and out; a published price is kept for AgentOpt's reports."""
        known = model_price.get_model_price(llm, self._custom_prices)
        if known is None:
            try:
                known = PriceList().usd_per_mtok(llm)
            except InputError:
                raise InputError(
                    f"no price is known for {llm!r}; give model_prices={{{llm!r}: "
                    "{'input_price': 0.25, 'output_price': 2.0}} (USD for a million tokens)"
                ) from None
            self._custom_prices = {**(self._custom_prices or {}), llm: known}
        return known

    def _run_sample(self, combination: dict[str, Any], sample: Sample) -> dict[str, Any]:
        """Score, cost in USD, seconds and tokens by LLM of one sample, as `select` takes them."""
        name, began = self._combo_name(combination), time.perf_counter()
        pair = f"{name}::dp_{sample.number + 1}"  # as AgentOpt calls it
        before = self._tracker.get_usage(data_id=pair)  # by another selector with this tracker
        scores, seconds = self._evaluated(name, combination, sample)
        if not scores:
            seconds = [time.perf_counter() - began]
            with self._changing:
                self._num_failed += 1
        used = {
            llm: [now - then for now, then in zip(counts, before.get(llm, (0, 0)), strict=True)]
            for llm, counts in self._tracker.get_usage(data_id=pair).items()
        }
        if any(map(any, used.values())):
            self._has_seen = True
        if scores and not self._has_seen:
            raise InputError(_UNSEEN)
        usd = sum(
            tokens * price / 1e6
            for llm, counts in used.items()
            for tokens, price in zip(counts, self._price(llm), strict=True)
        )
        outcomes = {_LATENCY: seconds[0]}
        for llm, counts in used.items():
            for kind, tokens in zip(_TOKENS, counts, strict=True):
                outcomes[f"{kind} {llm}"] = float(tokens)
        return {"quality": scores[0] if scores else 0.0, "cost_usd": usd, "outcomes": outcomes}

    def _evaluated(
        self, name: str, combination: dict[str, Any], sample: Sample
    ) -> tuple[Sequence[float], Sequence[float]]:
        """The score and the seconds, as AgentOpt measures them; both empty if the sample failed."""
        try:
            agent = self._agent(name, combination)
        except Exception as error:
            logger.warning("[%s] the agent cannot be made: %s", name, error)
            return (), ()
        pair, at = [(sample.input, sample.expected)], sample.number
        if self._is_async_run:
            running = self._evaluate_agent_async(agent, pair, name, 1, dp_offset=at)
            return result_of(running)[:2]
        return self._evaluate_agent(agent, pair, name, dp_offset=at)[:2]

    def _agent(self, name: str, combination: dict[str, Any]) -> Any:
        """The agent of a combination, which answers all its samples, as in AgentOpt."""
        with self._changing:
            if name not in self._agents:
                self._agents[name] = self.agent(combination)
            return self._agents[name]

    def _reports(self, result: RunResult, candidates: Mapping[str, Mapping[str, Any]]) -> Any:
        """AgentOpt's report of each combination that answered a sample."""
        answers: dict[tuple[int, ...], dict[int, Observation]] = {}
        observed = [*(result.probe or ()), *(result.reference or ()), *result.history]
        for observation in (*result.known, *observed):  # those of searches that it continues
            answers.setdefault(observation.theta, {})[observation.query] = observation
        results: list[Any] = []
        for theta, of_query in answers.items():
            names = result.problem.names(theta)
            label = self._combo_name({node: candidates[node][name] for node, name in names.items()})
            samples = [self._sample_report(result, of_query[query]) for query in sorted(of_query)]
            tokens = {kind: _added([getattr(one, kind) for one in samples]) for kind in _TOKENS}
            results.append(
                self._make_result(
                    model_name=label,
                    accuracy=sum(one.score for one in samples) / len(samples),
                    latency_seconds=sum(one.latency_seconds for one in samples) / len(samples),
                    **tokens,
                    attribute="combination",
                    is_best=theta == result.recommendation.theta,
                    datapoint_results=samples,
                )
            )
        return model_selection.SelectionResults(results=results)

    def _sample_report(self, result: RunResult, observation: Observation) -> Any:
        """AgentOpt's report of one sample."""
        outcomes = observation.outcomes or {}
        tokens = {
            kind: {
                name.removeprefix(f"{kind} "): int(value)
                for name, value in outcomes.items()
                if name.startswith(f"{kind} ")
            }
            for kind in _TOKENS
        }
        return model_selection.DatapointResult(
            datapoint_index=(result.queries or ())[observation.query].number,
            score=observation.quality,
            latency_seconds=outcomes.get(_LATENCY, 0.0),
            **tokens,
        )


def _settings(
    loss: float | None, budget_usd: float | None, given: dict[str, Any]
) -> dict[str, Any]:
    """Arguments of `select`, with the defaults that AgentOpt's users need not know."""
    limits = [Constraint.parse(str(limit)) for limit in given.get("constraints", ())]
    has_goal = given.get("min_quality") is not None or QUALITY in [one.name for one in limits]
    if loss is None and given.get("objective", "cost") == "cost" and not has_goal:
        loss = _LOSS
    if budget_usd is None:
        budget_usd, given = _NO_LIMIT_USD, {"deployment_queries": _DEPLOYED} | given
    return given | {"max_quality_loss": loss, "budget_usd": budget_usd}


def _added(counts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """The tokens of each LLM over all samples."""
    total: dict[str, int] = {}
    for one in counts:
        for llm, number in one.items():
            total[llm] = total.get(llm, 0) + number
    return total
