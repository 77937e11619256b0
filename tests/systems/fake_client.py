"""A chat client in memory, whose replies a test chooses."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from scope_torch.llm.chat import ChatCall, Completion, LLMError
from scope_torch.llm.prices import LLMInfo
from scope_torch.systems.graph import CompoundSystem, SystemRun

Answer = str | Completion | BaseException


def completion(text: str, **changes: Any) -> Completion:
    given = {"prompt_tokens": 10, "completion_tokens": 2, "cached_tokens": 0, "cost_usd": 0.001}
    given |= {"failed_usd": 0.0, "latency_s": 1.0}
    return Completion(text, **(given | changes))


class FakeClient:
    """Answers each call by the module it comes from: every module has an LLM of its own.

    Args:
        answers: By module: an answer, or a function of the call that gives one. Exceptions are
            raised.
        gates: By module: an event that its calls wait for.
    """

    def __init__(
        self,
        answers: Mapping[str, Answer | Callable[[ChatCall], Answer]],
        gates: Mapping[str, asyncio.Event] | None = None,
    ) -> None:
        self.answers, self.gates = answers, gates or {}
        self.calls: list[ChatCall] = []
        self.finished: list[str] = []

    async def complete(self, call: ChatCall) -> Completion:
        self.calls.append(call)
        if call.llm in self.gates:
            await self.gates[call.llm].wait()
        answer = self.answers[call.llm]
        answer = answer(call) if callable(answer) else answer
        self.finished.append(call.llm)
        if isinstance(answer, BaseException):
            raise answer
        return completion(answer) if isinstance(answer, str) else answer

    def prompt(self, module: str) -> str:
        """The text that was sent in the only call of a module."""
        (sent,) = self.prompts(module)
        return sent

    def prompts(self, module: str) -> list[str]:
        return [
            "\n".join(message.content for message in call.messages)
            for call in self.calls
            if call.llm == module
        ]


def assignment(system: CompoundSystem, prompting: str = "chat") -> dict[str, LLMInfo]:
    """Gives each module an LLM with its name."""
    return {m.name: LLMInfo(m.name, 1.0, 1.0, prompting=prompting) for m in system.modules}


def run(
    system: CompoundSystem,
    fields: Mapping[str, Any],
    client: FakeClient,
    prompting: str = "chat",
) -> SystemRun:
    return asyncio.run(system.run(assignment(system, prompting), fields, client))


def lost(cost_usd: float = 0.0) -> LLMError:
    """The error of a call without a reply that is not fatal."""
    return LLMError("no reply", cost_usd=cost_usd)
