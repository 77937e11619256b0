"""Calls of LLMs and their replies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol


class Message(NamedTuple):
    """One message of a conversation."""

    role: str  # system | user | assistant
    content: str


@dataclass(frozen=True)
class ChatCall:
    """One chat completion.

    Args:
        llm: Name of the LLM in the price list.
        messages: The conversation so far.
        max_tokens: Longest reply, in completion tokens.
        temperature: Sampling temperature; not sent to LLMs that accept none.
        replicate: Distinguishes repeated calls with the same content: a stored reply is only used
            again for the same replicate.
        repeat_of: Whose repeat it is. A stored reply of replicate 0 is for all who make the call;
            of a later one it is for the same `repeat_of` only, so that their repeats are
            independent.

    Examples:
        >>> call = ChatCall("GPT-5.2", (Message("user", "What is 6 x 7?"),), max_tokens=20)
        >>> call.temperature
        0.0
    """

    llm: str
    messages: tuple[Message, ...]
    max_tokens: int
    temperature: float = 0.0
    replicate: int = 0
    repeat_of: str = ""


@dataclass(frozen=True)
class Completion:
    """A reply, its tokens and its cost.

    Args:
        text: The reply; empty if the LLM said nothing.
        prompt_tokens: Billed prompt tokens, `cached_tokens` included.
        completion_tokens: Billed completion tokens, hidden reasoning included.
        cached_tokens: Prompt tokens billed at the price of cached input.
        cost_usd: Cost of the call in USD: tokens x price, plus `failed_usd`.
        failed_usd: Cost in USD of attempts without a usable reply; a part of `cost_usd`.
        latency_s: Seconds from the first attempt to the reply.
        finish_reason: stop | length | ...; "" if the server did not report it.
        estimated: Whether a part of the cost is an upper estimate, because an attempt was cut short
            or the server reported no tokens.
    """

    text: str
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    cost_usd: float
    failed_usd: float
    latency_s: float
    finish_reason: str = "stop"
    estimated: bool = False


class ChatClient(Protocol):
    """Completes calls: an endpoint, or a store in front of an endpoint."""

    async def complete(self, call: ChatCall) -> Completion:
        """Returns the completion of `call`.

        Raises:
            LLMError: If there is no reply after retries; its `cost_usd` was billed.
        """
        ...


class LLMError(Exception):
    """A call gave no reply.

    Args:
        message: The message: one line, without the key.
        fatal: Whether every further call would fail too, as with no key or an unknown model.
        cost_usd: Cost of the attempts in USD, or an upper estimate.
        latency_s: Seconds from the first attempt to the end of the last one.
    """

    def __init__(
        self,
        message: str,
        *,
        fatal: bool = False,
        cost_usd: float = 0.0,
        latency_s: float = 0.0,
    ) -> None:
        super().__init__(message)
        self.fatal = fatal
        self.cost_usd = cost_usd
        self.latency_s = latency_s
