"""LLAMBO's LLM: on an OpenAI-compatible server, in a transcript, or a stand-in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Protocol

from scope_torch.baselines.chat_client import CompletionsClient
from scope_torch.baselines.llambo_prompts import Message
from scope_torch.baselines.llm_stub import StubLLM
from scope_torch.baselines.llm_transcript import Replies, Transcript, prompt_key
from scope_torch.errors import InputError

KINDS = ("stub", "openai", "replay")


class Backend(Protocol):
    """An LLM that completes chats."""

    kind: str

    def complete(
        self, messages: list[Message], n: int, temperature: float, max_tokens: int
    ) -> Replies:
        """`n` replies to a chat.

        Args:
            messages: The chat.
            n: Number of replies.
            temperature: Sampling temperature, where the LLM allows one.
            max_tokens: Largest length of a reply, in tokens.

        Raises:
            InputError: If the LLM cannot be asked.
        """
        ...

    def settings(self) -> dict[str, Any]:
        """All settings that decide the replies, JSON-serialisable and without the key."""
        ...


@dataclass(frozen=True)
class BackendConfig:
    """Settings of a backend: the keys below `method.backend` on the command line.

    Args:
        kind: `openai` (a server), `replay` (the transcript alone) or `stub` (offline stand-in).
        model: Name of the LLM on the server.
        base_url: The URL of the server before `/chat/completions`.
        api_key_env: Environment variable with the key; None for a server without.
        transcript: File that keeps every reply. Without it a run with `openai` cannot be resumed:
            the LLM would answer differently, and a search that departs from its journal is refused.
        token_parameter: `max_completion_tokens` or `max_tokens`, whichever the LLM accepts.
        min_tokens: Least limit on the tokens of a reply: an LLM that reasons spends a lower one
            before it answers.
        sampling: Whether the LLM allows a temperature and top_p.
        top_p: Nucleus sampling, where allowed.
        multiple: Whether to ask for several replies with one request; if the server gives fewer,
            further requests ask for the rest.
        price_input: USD per million prompt tokens; None if unknown.
        price_output: USD per million completion tokens; None if unknown.
        timeout_s: Longest wait for the server, in seconds.
        retries: How often a request is sent again after a failure that passes.
        backoff_s: First wait before that, in seconds; doubles each time.
        malformed: Stub: the share of replies that no parser accepts, in [0, 1).

    Raises:
        InputError: If a value is outside its range, or `replay` has no transcript.

    Examples:
        >>> BackendConfig(kind="openai", model="m", base_url="http://localhost:8000/v1").retries
        4
    """

    kind: str = "stub"
    model: str = "gpt-5.2"
    base_url: str = "https://api.openai.com/v1"
    api_key_env: str | None = "OPENAI_API_KEY"
    transcript: str | None = None
    token_parameter: str = "max_completion_tokens"
    min_tokens: int = 4096
    sampling: bool = False
    top_p: float = 0.95
    multiple: bool = True
    price_input: float | None = None
    price_output: float | None = None
    timeout_s: float = 120.0
    retries: int = 4
    backoff_s: float = 1.0
    malformed: float = 0.03

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputError(f"backend.kind={self.kind!r} must be one of {list(KINDS)}")
        if self.token_parameter not in ("max_completion_tokens", "max_tokens"):
            raise InputError(
                f"backend.token_parameter={self.token_parameter!r} must be "
                "'max_completion_tokens' or 'max_tokens'"
            )
        for key in ("price_input", "price_output", "timeout_s", "retries", "backoff_s"):
            value = getattr(self, key)
            if value is not None and not 0 <= value < float("inf"):
                raise InputError(f"backend.{key}={value} must be a number >= 0")
        if not 0 <= self.malformed < 1:
            raise InputError(f"backend.malformed={self.malformed} must lie in [0, 1)")
        if self.kind == "replay" and not (self.transcript and Path(self.transcript).is_file()):
            raise InputError(
                f"backend.transcript={self.transcript!r} is not a file; kind=replay needs the "
                "transcript of a run with kind=openai"
            )


class RecordedLLM:
    """An LLM behind a transcript: known replies are repeated, others asked for and recorded.

    With `replay` there is no server, and a prompt without a known reply is an error.

    Args:
        config: Settings.
        seed: The run's seed, so that runs can share a transcript.

    Raises:
        InputError: If the URL or the transcript cannot be used.
    """

    def __init__(self, config: BackendConfig, seed: int) -> None:
        self.kind = config.kind
        self._config, self._seed = config, seed
        self._transcript = Transcript(Path(config.transcript) if config.transcript else None)
        self._client: CompletionsClient | None = None
        if config.kind == "openai":
            self._client = CompletionsClient(
                config.base_url,
                config.api_key_env,
                timeout_s=config.timeout_s,
                retries=config.retries,
                backoff_s=config.backoff_s,
            )

    def complete(
        self, messages: list[Message], n: int, temperature: float, max_tokens: int
    ) -> Replies:
        """`n` replies, known or new; a request leaves out settings that the LLM does not allow."""
        config = self._config
        body: dict[str, Any] = {
            "model": config.model,
            "messages": messages,
            config.token_parameter: max(max_tokens, config.min_tokens),
        }
        if config.sampling:
            body |= {"temperature": temperature, "top_p": config.top_p}
        key = prompt_key(self._seed, n, body)
        reply = self._transcript.next_reply(key)
        if reply is None:
            reply = self._ask(body, n)
            self._transcript.append(key, messages, reply)
        return reply

    def _ask(self, body: dict[str, Any], n: int) -> Replies:
        if self._client is None:
            raise InputError(
                f"{self._config.transcript} has no reply to a prompt of this search; replay it "
                "with the task, seed and settings it was recorded with, or use kind=openai"
            )
        completion = Replies(())
        while (missing := n - len(completion.texts)) > 0:
            completion += self._client.complete(body, missing if self._config.multiple else 1)
        return completion

    def settings(self) -> dict[str, Any]:
        """All settings that decide the replies, without the key."""
        names = ("kind", "model", "token_parameter", "min_tokens", "sampling", "multiple")
        settings = {name: getattr(self._config, name) for name in names}
        settings["top_p"] = self._config.top_p if self._config.sampling else None
        if self._client is not None:
            settings["base_url"] = self._client.base_url
        return settings


def backend_config(values: Mapping[str, Any]) -> BackendConfig:
    """A config from plain values.

    Args:
        values: Some of the fields of `BackendConfig`.

    Raises:
        InputError: If a key or value is wrong.
    """
    known = [field.name for field in fields(BackendConfig)]
    strange = [key for key in values if key not in known]
    if strange:
        raise InputError(f"backend has no key {strange[0]!r}; choose among {known}")
    return BackendConfig(**values)


def make_backend(config: BackendConfig, seed: int) -> Backend:
    """The backend that a config describes.

    Args:
        config: Settings.
        seed: The run's seed.

    Raises:
        InputError: If the URL or the transcript cannot be used.
    """
    if config.kind == "stub":
        return StubLLM(seed, config.malformed)
    return RecordedLLM(config, seed)
