"""An application as it is, made into the function that `FunctionEvaluator` calls.

An application answers one input; a metric compares the answer with what is expected. What a run
costs the application says itself, as USD or as tokens, or an `Endpoint` measures it.
"""

from __future__ import annotations

import inspect
import json
import os
import shlex
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from scope_torch.errors import InputError
from scope_torch.evaluators.event_loop import result_of
from scope_torch.evaluators.outputs import FILE, Key, Outputs, exact_outputs
from scope_torch.runs.content import identity_of

if TYPE_CHECKING:
    from scope_torch.serve.endpoint import Endpoint
    from scope_torch.serve.ledger import Ledger

App = Callable[..., Any]
Metric = Callable[[Any, Any], float]

_COSTS = {"cost_usd", "tokens"}
_MAX_ERROR_CHARS = 500


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
        dataset: Inputs, or pairs (input, expected).
        with_expected: Whether they are pairs.

    Raises:
        InputError: If there is none, or an element is not a pair.

    Examples:
        >>> items_of([("2 + 2?", "4")], with_expected=True)
        [Item(number=0, input='2 + 2?', expected='4')]
    """
    if isinstance(dataset, str | bytes | Mapping):
        raise InputError(f"dataset={dataset!r:.60} must be a list of inputs, or of pairs")
    items: list[Item] = []
    for index, element in enumerate(dataset):
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
        metric: `metric(expected, output)`, in [0, 1]. None if the application grades itself.
        endpoint: Measures what a run costs. None if the application says it: it then returns
            (output, USD) or (output, {module: (prompt tokens, completion tokens)}), or a dict with
            `output`, with `cost_usd` or `tokens`, and perhaps with `outcomes`; `quality` in the
            place of the output if it grades itself.
        outcomes: Names of the outcomes that are needed. `latency_s` and, with an endpoint,
            `input_tokens` and `output_tokens` are measured if the application does not say them.
        path: File for the outputs, see `Outputs`.
        metric_version: Says which metric it is, in the place of its code, see `identity_of`; an
            application that grades itself may have one too.

    Attributes:
        outputs: What it returned; empty if it grades itself.
        has_metric: Whether a metric grades it.
        grading: What tells the metric from others.

    Examples:
        >>> application = Application(lambda models, x: (x.upper(), 0.01), lambda e, o: e == o)
        >>> application({"only": "nano"}, Item(0, "yes", "YES"))
        {'quality': True, 'cost_usd': 0.01}
    """

    def __init__(
        self,
        app: App | str | Sequence[str],
        metric: Metric | None = None,
        endpoint: Endpoint | None = None,
        outcomes: Sequence[str] = (),
        path: Path | None = None,
        metric_version: str | None = None,
    ) -> None:
        self._app: App = app if callable(app) else Command(app)
        if isinstance(self._app, Command) and endpoint is None:
            raise InputError(
                f"the command {app!r} cannot say what a run costs; give endpoint= the address of "
                "your LLMs, and let it ask the base URL in its environment"
            )
        self._metric, self._endpoint, self._outcomes = metric, endpoint, frozenset(outcomes)
        self._takes_models = endpoint is None or _number_of_arguments(self._app) > 1
        self.outputs = Outputs(path)
        self.has_metric = metric is not None
        version = "" if metric_version is None else f", version {metric_version}"
        self.grading = (
            f"the app{version}" if metric is None else identity_of(metric, metric_version)
        )
        self.__qualname__ = getattr(self._app, "__qualname__", "app")

    def __call__(self, models: dict[str, str], item: Item) -> Any:
        """Runs the application once; what it returns is for `FunctionEvaluator`."""
        began = time.perf_counter()
        if self._endpoint is None:
            graded = self._graded_with_cost(self._called(models, item), models, item)
        else:
            returned, ledger = self._measured_call(self._endpoint, models, item)
            graded = self._graded(returned, models, item) | _measured(ledger, models)
        seconds = time.perf_counter() - began
        return self._with_outcomes(graded, {"latency_s": seconds})

    def outputs_of(self, run_dir: Path) -> Mapping[Key, Any]:
        """See `Regrades`."""
        return exact_outputs(run_dir / FILE)

    def regraded(self, item: Item, output: Any) -> float | None:
        """The grade of an output that was kept; None if the application grades itself."""
        return None if self._metric is None else self._metric(item.expected, output)

    def adopt(self, llms: Sequence[str], item: Item, output: Any) -> None:
        """Keeps an output of an earlier run."""
        self.outputs.keep(llms, item.number, output)

    def _measured_call(
        self, endpoint: Endpoint, models: dict[str, str], item: Item
    ) -> tuple[Any, Ledger]:
        """What the application returns, and what it was billed; an error has its `cost_usd`."""
        with ExitStack() as ending:
            query = ending.enter_context(endpoint.query(models))
            try:
                returned = self._called(models, item, query.env)
            except Exception as error:
                ending.close()  # which waits for the calls in flight
                usd = query.ledger.cost_usd
                with suppress(AttributeError):  # it may have slots
                    error.cost_usd = usd  # type: ignore[attr-defined]
                raise
        return returned, query.ledger

    def _called(
        self, models: dict[str, str], item: Item, environment: Mapping[str, str] | None = None
    ) -> Any:
        if isinstance(self._app, Command):
            return self._app(item.input, environment)
        returned = self._app(models, item.input) if self._takes_models else self._app(item.input)
        # Also on the event loop the call sees the context of this thread: which query it is.
        return result_of(returned) if inspect.isawaitable(returned) else returned

    def _graded_with_cost(self, returned: Any, models: dict[str, str], item: Item) -> Any:
        """Of an application that says what it costs."""
        if self._metric is None:
            return returned
        if isinstance(returned, Mapping) and "output" in returned and _COSTS & set(returned):
            rest = {key: value for key, value in returned.items() if key != "output"}
            return self._graded(returned["output"], models, item) | rest
        if not (isinstance(returned, tuple | list) and len(returned) == 2):
            raise InputError(
                f"the app returned {returned!r:.80}; return (output, USD) or (output, {{module: "
                "(prompt tokens, completion tokens)}), or let an endpoint= measure the cost"
            )
        output, usage = returned
        key = "tokens" if isinstance(usage, Mapping) else "cost_usd"
        return self._graded(output, models, item) | {key: usage}

    def _graded(self, output: Any, models: dict[str, str], item: Item) -> dict[str, Any]:
        if self._metric is None:
            return dict(output) if isinstance(output, Mapping) else {"quality": output}
        self.outputs.keep(list(models.values()), item.number, output)
        return {"quality": self._metric(item.expected, output)}

    def _with_outcomes(self, graded: Any, measured: dict[str, float]) -> Any:
        if not (self._outcomes and isinstance(graded, Mapping)):
            return graded
        tokens = graded.get("tokens")
        if tokens is not None:
            used = list(tokens.values())
            measured |= {"input_tokens": sum(u[0] for u in used)}
            measured |= {"output_tokens": sum(u[1] for u in used)}
        wanted = {name: value for name, value in measured.items() if name in self._outcomes}
        outcomes = wanted | dict(graded.get("outcomes") or {})
        return {**graded, "outcomes": outcomes} if outcomes else graded


def _measured(ledger: Ledger, models: Mapping[str, str]) -> dict[str, Any]:
    """Cost in USD and tokens by module, of modules that were not called too."""
    bills = ledger.by_module()
    costs = {module: bills[module].cost_usd if module in bills else 0.0 for module in models}
    tokens = {
        module: (bills[module].prompt_tokens, bills[module].completion_tokens)
        if module in bills
        else (0, 0)
        for module in models
    }
    return {"module_cost_usd": costs, "tokens": tokens}


def _number_of_arguments(app: App) -> int:
    """How many positional arguments a function needs; 1 if that is not known."""
    try:
        parameters = inspect.signature(app).parameters.values()
    except (TypeError, ValueError):
        return 1
    positional = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    return sum(p.kind in positional and p.default is p.empty for p in parameters)


class Command:
    """A program as an application: one process for each input.

    It runs without a shell. The output is the last line that it prints, or the content of the file
    `{output}`.

    Args:
        command: The program and its arguments, as one text or as a list. `{input}` stands for the
            input, `{output}` for the path of a file that the program writes. Without `{input}` the
            program reads the input from standard input. An input that is not text becomes JSON.
        timeout_s: The program is killed after so many seconds.

    Raises:
        InputError: If the command is empty.

    Examples:
        >>> Command("echo the answer to {input}")("6 x 7")
        'the answer to 6 x 7'
    """

    def __init__(self, command: str | Sequence[str], timeout_s: float = 600.0) -> None:
        self._words = shlex.split(command) if isinstance(command, str) else list(command)
        if not self._words:
            raise InputError("the command is empty; say for example 'python app.py {input}'")
        self._timeout_s = timeout_s
        self.__qualname__ = " ".join(self._words)

    def __call__(self, value: Any, environment: Mapping[str, str] | None = None) -> str:
        """Runs the program.

        Args:
            value: The input.
            environment: Variables besides those of this process, such as `OPENAI_BASE_URL`.

        Raises:
            RuntimeError: If it fails, takes too long, or prints nothing.
        """
        text = value if isinstance(value, str) else json.dumps(value)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "output"
            names = {"{input}": text, "{output}": str(path)}
            words = [_filled(word, names) for word in self._words]
            given = "" if "{input}" in " ".join(self._words) else text
            printed = self._run(words, given, environment or {})
            if "{output}" not in " ".join(self._words):
                lines = printed.strip().splitlines()
                if not lines:
                    raise RuntimeError(f"{words[0]} printed nothing; its last line is its answer")
                return lines[-1]
            if not path.exists():
                raise RuntimeError(f"{words[0]} did not write the file given for {{output}}")
            return path.read_text()

    def _run(self, words: list[str], given: str, environment: Mapping[str, str]) -> str:
        # A session of its own: Ctrl-C ends the search after the calls in flight, not these.
        process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
            start_new_session=True,
        )
        try:
            printed, errors = process.communicate(given, timeout=self._timeout_s)
        except BaseException as error:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)  # also what it has started
            process.communicate()
            if isinstance(error, subprocess.TimeoutExpired):
                raise RuntimeError(f"{words[0]} took more than {self._timeout_s:g} s") from None
            raise
        if process.returncode:
            tail = errors.strip()[-_MAX_ERROR_CHARS:]
            raise RuntimeError(f"{words[0]} ended with status {process.returncode}: {tail}")
        return printed


def _filled(word: str, names: Mapping[str, str]) -> str:
    """A word of a command with its placeholders; a placeholder inside an input stays as it is."""
    before, found, after = word.partition("{output}")
    parts = [part.replace("{input}", names["{input}"]) for part in (before, after)]
    return (names["{output}"] if found else "").join(parts) if found else parts[0]
