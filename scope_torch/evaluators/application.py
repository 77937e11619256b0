"""An application as it is, made into the function that `FunctionEvaluator` calls.

An application answers one input; a metric compares the answer with what is expected. What a run
costs the application says itself, as USD or as tokens, or an `Endpoint` measures it. What a metric
that asks an LLM costs is told apart: it is paid, but no cost of the configuration.
"""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, SupportsFloat

from scope_torch.errors import InputError
from scope_torch.evaluators.command import Command
from scope_torch.evaluators.elsewhere import Elsewhere, timed
from scope_torch.evaluators.frames import elements_of
from scope_torch.evaluators.grading import JUDGE, Grading
from scope_torch.evaluators.grading import Metric as Metric
from scope_torch.evaluators.outputs import FILE, Key, Outputs, exact_outputs
from scope_torch.evaluators.retired import mark, naming_retired, retired_by
from scope_torch.evaluators.returned import is_truth
from scope_torch.evaluators.tokens import tokens_of
from scope_torch.factors import own_factors
from scope_torch.observation import Observation
from scope_torch.runs.identity import identities_of
from scope_torch.serve.ledger import Ledger, ModuleBill

if TYPE_CHECKING:
    from scope_torch.serve.endpoint import Endpoint
    from scope_torch.serve.queries import QueryInFlight

logger = logging.getLogger(__name__)

App = Callable[..., Any]

_COSTS = {"cost_usd", "tokens"}


class Item(NamedTuple):
    """One element of a data set: its position, the input, and the expected output, if any."""

    number: int
    input: Any
    expected: Any = None

    @property
    def content(self) -> tuple[Any, Any]:
        """What it is, wherever it stands."""
        return self.input, self.expected


def items_of(dataset: Sequence[Any], with_expected: bool) -> list[Item]:
    """The elements of a data set.

    Args:
        dataset: Inputs, or pairs (input, expected); or a frame, see `elements_of`.
        with_expected: Whether they are pairs.

    Raises:
        InputError: If there is none, or an element is not a pair.

    Examples:
        >>> items_of([("2 + 2?", "4")], with_expected=True)
        [Item(number=0, input='2 + 2?', expected='4')]
    """
    is_list = hasattr(dataset, "__getitem__") or hasattr(dataset, "__iter__")
    if isinstance(dataset, str | bytes | Mapping) or not is_list:
        raise InputError(f"dataset={dataset!r:.60} must be a list of inputs, or of pairs")
    items: list[Item] = []
    for index, element in enumerate(elements_of(dataset, with_expected)):
        if not with_expected:
            items.append(Item(index, element))
            continue
        if not isinstance(element, tuple | list) or len(element) != 2:
            raise InputError(
                f"dataset[{index}]={element!r:.80} must be a pair (input, expected), because the "
                "metric compares with what is expected; without metric=, the app grades itself"
            )
        items.append(Item(index, *element))
    if not items:
        raise InputError("dataset is empty; give at least one input")
    return items


class Application:
    """Calls an application for an item and grades it.

    Args:
        app: `app(models, input)`, where models maps modules to LLMs, or, with an endpoint,
            `app(input)`; may be `async def`. Or a command, see `Command`.
        metric: `metric(expected, output)` or `metric(expected, output, input)`, see `Grading`. It
            returns a grade in [0, 1], or a grade and the USD that grading has cost. None if the
            application grades itself.
        endpoint: Measures what a run costs. None if the application says it: it then returns
            (output, USD) or (output, {module: (prompt tokens, completion tokens)}), or a dict with
            `output`, with `cost_usd` or `tokens` (and perhaps `seconds`, by module), and perhaps
            with `outcomes`. If it grades itself, it returns `quality` in the place of the output; a
            dict may have both.
        outcomes: Names of the outcomes that are needed. `latency_s`, the seconds of the application
            alone, and, with an endpoint, `input_tokens` and `output_tokens` are measured if the
            application does not say them.
        path: File for the outputs, see `Outputs`.
        judge: The LLM that the metric asks as `scope/judge` through the endpoint; None for none.
        metric_version: Says which metric it is, in the place of its code, see `identity_of`; an
            application that grades itself may have one too.
        elsewhere: Where application and metric run; None: here.

    Attributes:
        elsewhere: As given.
        outputs: What it returned.
        judge: As given.
        has_metric: Whether a metric grades it.
        grading: What tells the metric and its judge from others.
        gradings_before: What an earlier version would have said of the same metric.

    Raises:
        InputError: If the metric takes other arguments, or a command or a judge lacks what it
            needs.

    Examples:
        >>> application = Application(lambda models, x: (x.upper(), 0.01), lambda e, o: e == o)
        >>> application({"only": "nano"}, Item(0, "yes", "YES"))
        {'cost_usd': 0.01, 'quality': True}
    """

    def __init__(
        self,
        app: App | str | Sequence[str],
        metric: Metric | None = None,
        endpoint: Endpoint | None = None,
        outcomes: Sequence[str] = (),
        path: Path | None = None,
        judge: str | None = None,
        metric_version: str | None = None,
        elsewhere: Elsewhere | None = None,
    ) -> None:
        self._app: App = app if callable(app) else Command(app)
        if isinstance(self._app, Command) and endpoint is None:
            raise InputError(
                f"app={app!r} is a command, which cannot say what a run costs; give endpoint= the "
                "address of your LLMs, and let it ask the base URL in its environment"
            )
        if judge is not None and (endpoint is None or metric is None):
            raise InputError(
                f"judge={judge!r} is the LLM that a metric= asks through an endpoint=; give both, "
                "or let the metric return (grade, USD)"
            )
        if judge is not None and endpoint is not None:
            endpoint.prices.check([judge])
        self.elsewhere = elsewhere
        self._run = timed(self._app) if elsewhere is None else elsewhere.function("app", self._app)
        self._grading = None if metric is None else Grading(metric, elsewhere)
        self._endpoint, self._outcomes = endpoint, frozenset(outcomes)
        self._takes_models = endpoint is None or _number_of_arguments(self._app) > 1
        self.outputs, self.judge, self._is_warned = Outputs(path), judge, False
        self.has_metric = metric is not None
        version = "" if metric_version is None else f", version {metric_version}"
        itself = [f"the app{version}"]
        told = itself
        if metric is not None and self._grading is not None:
            told = [one + self._grading.order for one in identities_of(metric, metric_version)]
        # An early version did not record the judge.
        asked = told if judge is None else [f"judge={str(judge)!r}, {told[0]}", *told]
        self.grading, self.gradings_before = asked[0], asked[1:]
        self.__qualname__ = getattr(self._app, "__qualname__", "app")

    @property
    def lost(self) -> list[Observation]:
        """Its calls whose workers were lost."""
        return [] if self.elsewhere is None else list(self.elsewhere.lost)

    def check(self, items: Sequence[Item]) -> None:
        """Raises InputError if the application cannot be given one of them."""
        if isinstance(self._app, Command):
            for item in items:
                self._app.words(item.input)
        if self.elsewhere is not None:
            for item in items:
                self.elsewhere.check(f"dataset[{item.number}]={item.content!r:.80}", item.content)

    def __call__(self, models: dict[str, str], item: Item) -> Any:
        """Runs the application once, and grades it."""
        run = self.ungraded(models, item)
        if self._grading is None:
            return run
        quality, usd = run["quality"]()
        return {**run, "quality": quality, **({"judge_usd": usd} if usd else {})}

    def ungraded(self, models: dict[str, str], item: Item) -> Any:
        """Runs the application once; `FunctionEvaluator` grades it when it has booked the cost."""
        if self._endpoint is None:
            with naming_retired(models):
                returned, seconds = self._called(models, item)
            run = self._with_cost(returned)
        else:
            call = partial(self._called, models, item)
            (returned, seconds), ledger = _billed(self._endpoint, models, call, must_ask=True)
            if self._grading is not None:
                returned = {"output": returned}
            run = dict(returned) if isinstance(returned, Mapping) else {"quality": returned}
            if own := sorted(_COSTS & run.keys()):
                error = InputError(
                    f"the app returned {own[0]}, and the endpoint measures what its calls cost; "
                    "leave it out"
                )
                error.refused_answer = _measured(ledger, models)  # type: ignore[attr-defined]
                raise error
            run |= _measured(ledger, models)
        run = self._with_outcomes(run, {"latency_s": seconds})
        return self._to_grade(run, models, item) if isinstance(run, Mapping) else run

    def outputs_of(self, run_dir: Path) -> Mapping[Key, Any]:
        """See `Regrades`."""
        return exact_outputs(run_dir / FILE)

    def regraded(self, item: Item, output: Any) -> tuple[Any, float]:
        """The grade of an output that was kept, and what it has cost in USD."""
        return self._grade(item, output)

    def adopt(self, llms: Sequence[str], item: Item, output: Any) -> None:
        """Keeps an output of an earlier run."""
        self.outputs.keep(llms, item.number, output)

    def apart(self, path: Path | None) -> Application:
        """The same application, which keeps its outputs elsewhere."""
        other = copy(self)
        other.outputs = Outputs(path)
        return other

    def _called(
        self, models: dict[str, str], item: Item, query: QueryInFlight | None = None
    ) -> tuple[Any, float]:
        """What the application returns, and its seconds: without waiting for the bill."""
        if isinstance(self._app, Command):
            return self._run(item.input, None if query is None else query.env)
        if self._takes_models or query is None:
            return self._run(models, item.input)
        returned = self._run(item.input)
        if not (query.is_read or self.elsewhere):
            self._warn_unread(models)
        return returned

    def _warn_unread(self, models: Mapping[str, str]) -> None:
        """Says once that the application does not know its factors; a region is a mere label."""
        own = dict.fromkeys(name for choice in models.values() for name in own_factors(choice))
        if not self._is_warned and (unread := [name for name in own if name != "region"]):
            self._is_warned = True
            logger.warning(
                "the app has not read its %s, so choices that differ only there are the same: make "
                "it app(models, input), or let it ask scope_torch.serve.current.models()",
                " and ".join(unread),
            )

    def _with_cost(self, returned: Any) -> Any:
        """Of an application that says what it costs."""
        if self._grading is None:
            return returned
        if isinstance(returned, Mapping) and "output" in returned and _COSTS & set(returned):
            return returned
        if not (isinstance(returned, tuple | list) and len(returned) == 2):
            raise InputError(
                f"the app returned {returned!r:.80}; return (output, USD) or (output, {{module: "
                "(prompt tokens, completion tokens)}), or let an endpoint= measure the cost"
            )
        output, usage = returned
        return {"output": output, "tokens" if isinstance(usage, Mapping) else "cost_usd": usage}

    def _to_grade(
        self, run: Mapping[str, Any], models: dict[str, str], item: Item
    ) -> dict[str, Any]:
        """With a function that finds out its `quality`, unless the application says it."""
        rest, output = dict(run), run.get("output")
        if "output" in rest:
            self.outputs.keep(list(models.values()), item.number, rest.pop("output"))
        return (
            rest
            if self._grading is None
            else {**rest, "quality": partial(self._grade, item, output)}
        )

    def _grade(self, item: Item, output: Any) -> tuple[Any, float]:
        """The grade, and what it has cost in USD; so does an error that the metric raises."""

        def call(_: QueryInFlight | None = None) -> tuple[Any, float]:
            assert self._grading is not None
            return _verdict(self._grading(item.expected, output, item.input))

        if self.judge is None or self._endpoint is None:
            return call()
        (grade, usd), ledger = _billed(self._endpoint, {JUDGE: self.judge}, call, must_ask=False)
        return grade, usd + ledger.cost_usd

    def _with_outcomes(self, graded: Any, measured: dict[str, float]) -> Any:
        if not self._outcomes:
            return graded
        if isinstance(graded, tuple | list) and len(graded) == 2:  # it grades itself
            usage = "tokens" if isinstance(graded[1], Mapping) else "cost_usd"
            graded = {"quality": graded[0], usage: graded[1]}
        if not isinstance(graded, Mapping):
            return graded
        tokens = graded.get("tokens")
        if tokens is not None:
            used = [tokens_of(one) for one in tokens.values()]
            measured |= {"input_tokens": sum(u[0] for u in used)}
            measured |= {"output_tokens": sum(u[1] for u in used)}
        wanted = {name: value for name, value in measured.items() if name in self._outcomes}
        outcomes = wanted | dict(graded.get("outcomes") or {})
        if missing := sorted(self._outcomes - outcomes.keys()):
            error = InputError(
                f"the app says no {missing[0]!r}, which a constraint needs; return a dict with "
                f"outcomes={{{missing[0]!r}: ...}}"
            )
            error.refused_answer = graded  # type: ignore[attr-defined]  # says what the run has cost
            raise error
        return {**graded, "outcomes": outcomes} if outcomes else graded


def _billed(
    endpoint: Endpoint,
    assignment: Mapping[str, str],
    call: Callable[[QueryInFlight], Any],
    must_ask: bool,
) -> tuple[Any, Ledger]:
    """What a call returns, and what it was billed; an error has its `cost_usd`.

    Raises:
        InputError: If a provider does not accept the key or has no credit left, whatever was made
            of that; or if it must ask an LLM, and is no observation, see `Endpoint.fault_of`.
    """
    returned: Any = None
    error: BaseException | None = None
    with endpoint.query(assignment) as query:  # its end waits for the calls in flight
        try:
            returned = call(query)
            query.is_answered = must_ask
        except BaseException as raised:  # also an interrupt: what it asked for before is paid
            error, query.has_failed = raised, True
            mark(error, retired_by(query.troubles, assignment))
    is_run = error is None or isinstance(error, Exception)
    fault = query.account_fault() or (endpoint.fault_of(query) if must_ask and is_run else None)
    if is_run and fault:
        wrong = InputError(fault)
        wrong.__cause__ = error
        error = wrong
    if error is not None:
        with suppress(AttributeError):  # it may be frozen
            error.cost_usd = query.ledger.cost_usd  # type: ignore[attr-defined]
        raise error
    return returned, query.ledger


def _verdict(returned: Any) -> tuple[Any, float]:
    """The grade, and the USD that a metric says it has cost."""
    if not (isinstance(returned, tuple) and len(returned) == 2):
        return returned, 0.0
    grade, usd = returned
    if is_truth(usd) or not isinstance(usd, SupportsFloat) or not 0 <= float(usd) < math.inf:
        raise InputError(
            f"the metric returned {returned!r:.80}; it must return a grade in [0, 1], or a grade "
            "and the USD that it has cost"
        )
    return grade, float(usd)


def _measured(ledger: Ledger, models: Mapping[str, str]) -> dict[str, Any]:
    """Cost in USD, tokens and calls by module, of modules that were not called too."""
    known = ledger.by_module()
    bills = {module: known.get(module, ModuleBill()) for module in models}
    return {
        "module_cost_usd": {module: bill.cost_usd for module, bill in bills.items()},
        "tokens": {
            module: (bill.prompt_tokens, bill.completion_tokens) for module, bill in bills.items()
        },
        "calls": {module: bill.calls for module, bill in bills.items()},
    }


def _number_of_arguments(app: App) -> int:
    """How many positional arguments a function needs; 1 if that is not known."""
    try:
        parameters = inspect.signature(app).parameters.values()
    except (TypeError, ValueError):
        return 1
    positional = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    return sum(p.kind in positional and p.default is p.empty for p in parameters)
