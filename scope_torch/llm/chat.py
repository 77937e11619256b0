"""What a compound system asks of an LLM, and what comes back."""

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
        llm: Name in the price list.
        messages: The conversation so far.
        max_tokens: Longest reply, in completion tokens.
        temperature: Sampling temperature; not sent to LLMs that take none.
        replicate: Tells repeated calls with the same content apart; a stored reply is used again
            only for the same replicate.
    """

    llm: str
    messages: tuple[Message, ...]
    max_tokens: int
    temperature: float = 0.0
    replicate: int = 0


@dataclass(frozen=True)
class Completion:
    """A reply and what it cost.

    Args:
        text: The reply; empty if the LLM said nothing.
        prompt_tokens: Billed prompt tokens, `cached_tokens` included.
        completion_tokens: Billed completion tokens, hidden reasoning included.
        cached_tokens: Prompt tokens billed at the price of cached input.
        cost_usd: What the call cost, in USD: tokens x price, and `failed_usd`.
        failed_usd: The part of `cost_usd` that went into attempts without a usable reply.
        latency_s: Seconds from the first attempt to the reply.
        finish_reason: stop | length | ...; "" if the server did not say.
        estimated: Whether a part of the bill is an upper estimate, because an attempt was cut off
            or the server reported no usage.
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
    """Where completions come from: an endpoint, or a store in front of one."""

    async def complete(self, call: ChatCall) -> Completion:
        """Returns the completion of `call`.

        Raises:
            LLMError: If there is none, after retries; its `cost_usd` has been billed.
        """
        ...


class LLMError(Exception):
    """A call that gave no reply.

    Args:
        message: One line, without the key.
        fatal: Whether every further call would fail too: no key, an unknown model.
        cost_usd: What its attempts cost, in USD, or an upper estimate of it.
    """

    def __init__(self, message: str, *, fatal: bool = False, cost_usd: float = 0.0) -> None:
        super().__init__(message)
        self.fatal = fatal
        self.cost_usd = cost_usd
