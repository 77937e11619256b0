"""Compound AI systems as graphs of modules.

A module reads fields of the query and outputs of other modules, makes one or several prompts, and
turns the replies into its output. All its calls use the LLM that the configuration gives to it.
Modules that do not wait for each other run in parallel.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from scope_torch.errors import InputError
from scope_torch.llm.chat import ChatCall, ChatClient, Completion, LLMError, Message
from scope_torch.llm.prices import LLMInfo

Inputs = Mapping[str, Any]


class ParseError(ValueError):
    """A reply does not have the form that its prompt asks for."""


@dataclass(frozen=True)
class Module:
    """A module of a compound system.

    Args:
        name: Name of the module, as in configurations.
        inputs: Names of its inputs. Each is the output of the earlier module of that name or, if
            there is none, the query field of that name. So a module may read the field that has its
            own name.
        prompts: Makes the conversations to send, one call each, from the inputs and the style of
            prompts of the LLM (`LLMInfo.prompting`).
        parse: Makes the output from the replies (one for each conversation) and the inputs; raises
            ParseError if a reply cannot be used.
        fallback: Makes the output from the inputs if `parse` raised or a call gave no reply.
        max_tokens: Longest reply, in completion tokens.

    Examples:
        >>> shorten = Module(
        ...     name="shorten",
        ...     inputs=("text",),
        ...     prompts=lambda inputs, _: [(Message("user", f"Shorten: {inputs['text']}"),)],
        ...     parse=lambda replies, inputs: replies[0].strip(),
        ...     fallback=lambda inputs: inputs["text"],
        ...     max_tokens=100,
        ... )
        >>> shorten.prompts({"text": "A long story."}, "chat")
        [(Message(role='user', content='Shorten: A long story.'),)]
    """

    name: str
    inputs: tuple[str, ...]
    prompts: Callable[[Inputs, str], Sequence[tuple[Message, ...]]]
    parse: Callable[[Sequence[str], Inputs], Any]
    fallback: Callable[[Inputs], Any]
    max_tokens: int


class ModuleRun(NamedTuple):
    """Cost, tokens, time and calls of a module on a query."""

    cost_usd: float
    prompt_tokens: int
    completion_tokens: int
    latency_s: float
    num_calls: int
    num_failed: int  # calls that gave no reply
    parsed: bool  # False if the fallback was used


@dataclass(frozen=True)
class SystemRun:
    """Output, cost and time of a system on a query.

    Args:
        output: Output of its last module; a string.
        modules: Costs and calls of each module by name, in the order of the graph.
        latency_s: Seconds from the query to the output, as if no call had waited for a free slot.
    """

    output: str
    modules: dict[str, ModuleRun]
    latency_s: float

    @property
    def cost_usd(self) -> float:
        """Cost of all calls in USD."""
        return sum(module.cost_usd for module in self.modules.values())


@dataclass(frozen=True)
class CompoundSystem:
    """A graph of modules; the output of the last module is the output of the system.

    Args:
        name: Name of the system, shown in messages; a part of the run's settings.
        modules: The modules, each after those that it reads.
        version: Give it a new value when you change prompts or parsers, so that a journal of the
            old ones is not resumed.

    Raises:
        InputError: If there is no module, a name is repeated, or a module reads a later one.

    Examples:
        >>> import asyncio
        >>> from scope_torch.llm.prices import load_llms
        >>> module = Module(
        ...     "answer", ("question",), lambda inputs, _: [(Message("user", inputs["question"]),)],
        ...     lambda replies, _: replies[0], lambda _: "unknown", max_tokens=50,
        ... )
        >>> class Parrot:  # in place of an OpenAIClient
        ...     async def complete(self, call):
        ...         return Completion(call.messages[0].content, 10, 5, 0, 0.0002, 0.0, 0.1)
        >>> assignment = {"answer": load_llms()["GPT-5.2"]}
        >>> fields = {"question": "Who is there?"}
        >>> done = asyncio.run(CompoundSystem("demo", (module,)).run(assignment, fields, Parrot()))
        >>> done.output, done.cost_usd
        ('Who is there?', 0.0002)
    """

    name: str
    modules: tuple[Module, ...]
    version: str = "1"

    def __post_init__(self) -> None:
        names = tuple(module.name for module in self.modules)
        if not names or len(set(names)) != len(names):
            raise InputError(f"modules={list(names)}: a system needs modules with different names")
        for i, module in enumerate(self.modules):
            later = set(module.inputs) & set(names[i + 1 :])
            if later:
                raise InputError(
                    f"module {module.name!r} reads {sorted(later)}, which run later; "
                    "list each module after those it reads"
                )

    async def run(
        self,
        assignment: Mapping[str, LLMInfo],
        fields: Inputs,
        client: ChatClient,
        replicate: int = 0,
    ) -> SystemRun:
        """Runs the system on one query.

        Args:
            assignment: The LLM of every module, by module.
            fields: Fields of the query, by name.
            client: Sends the calls.
            replicate: Number of earlier runs of the same configuration on the query; see
                `ChatCall`.

        If a call of a module gives no reply, the module uses its fallback.

        Raises:
            LLMError: If every further call would fail too (`LLMError.fatal`).
            InputError: If the query lacks a field that a module reads, or a module has no LLM.
        """
        self._check(assignment, fields)  # before a call is paid for
        whose = ", ".join(f"{name}={llm.name}" for name, llm in assignment.items())
        repeat = {"replicate": replicate, "repeat_of": whose}
        tasks: dict[str, asyncio.Task[_Done]] = {}
        for module in self.modules:
            llm, earlier = assignment[module.name], dict(tasks)
            running = _run_module(module, llm, fields, earlier, client, repeat)
            tasks[module.name] = asyncio.create_task(running)
        # After an error the calls in flight end first, because they are billed. If this task is
        # cancelled, gather cancels the modules.
        await asyncio.gather(*tasks.values(), return_exceptions=True)
        done = {name: task.result() for name, task in tasks.items()}
        output, _, finished_s = done[self.modules[-1].name]
        return SystemRun(str(output), {name: run for name, (_, run, _) in done.items()}, finished_s)

    def _check(self, assignment: Mapping[str, LLMInfo], fields: Inputs) -> None:
        earlier: set[str] = set()
        for module in self.modules:
            if module.name not in assignment:
                raise InputError(
                    f"{self.name}: no LLM for module {module.name!r}, only for {list(assignment)}"
                )
            for name in module.inputs:
                if name not in earlier and name not in fields:
                    raise InputError(
                        f"{self.name}: module {module.name!r} reads {name!r}, which is neither an "
                        f"earlier module nor a field of the query; its fields: {list(fields)}"
                    )
            earlier.add(module.name)


class _Done(NamedTuple):
    """A module that has run."""

    output: Any
    run: ModuleRun
    finished_s: float  # seconds after the query, as if no call had waited for a free slot


async def _run_module(
    module: Module,
    llm: LLMInfo,
    fields: Inputs,
    earlier: Mapping[str, asyncio.Task[_Done]],
    client: ChatClient,
    repeat: Mapping[str, Any],
) -> _Done:
    """Runs a module once its inputs are there."""
    inputs, ready_s = await _inputs(module, fields, earlier)
    calls = [
        ChatCall(llm.name, messages, module.max_tokens, **repeat)
        for messages in module.prompts(inputs, llm.prompting)
    ]
    replies = await asyncio.gather(
        *(client.complete(call) for call in calls), return_exceptions=True
    )
    run = _module_run(replies)
    try:
        texts = [reply.text for reply in replies if isinstance(reply, Completion)]
        if len(texts) < len(replies):
            raise ParseError("a call gave no reply")
        output = module.parse(texts, inputs)
    except ParseError:
        output, run = module.fallback(inputs), run._replace(parsed=False)
    return _Done(output, run, ready_s + run.latency_s)


async def _inputs(
    module: Module, fields: Inputs, earlier: Mapping[str, asyncio.Task[_Done]]
) -> tuple[dict[str, Any], float]:
    """The inputs of a module by name, and the seconds after the query at which they are there."""
    inputs, ready_s = {}, 0.0
    for name in module.inputs:
        if name in earlier:
            inputs[name], _, finished_s = await earlier[name]
            ready_s = max(ready_s, finished_s)
        else:
            inputs[name] = fields[name]
    return inputs, ready_s


def _module_run(replies: Sequence[Completion | BaseException]) -> ModuleRun:
    """Adds up the calls of a module; raises an error that every further call would meet too."""
    for reply in replies:
        if isinstance(reply, BaseException) and not (
            isinstance(reply, LLMError) and not reply.fatal
        ):
            raise reply
    completions = [reply for reply in replies if isinstance(reply, Completion)]
    failures = [reply for reply in replies if isinstance(reply, LLMError)]
    return ModuleRun(
        cost_usd=sum(c.cost_usd for c in (*completions, *failures)),
        prompt_tokens=sum(c.prompt_tokens for c in completions),
        completion_tokens=sum(c.completion_tokens for c in completions),
        latency_s=max((c.latency_s for c in (*completions, *failures)), default=0.0),
        num_calls=len(replies),
        num_failed=len(failures),
        parsed=True,
    )
