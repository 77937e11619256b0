"""Completions from any provider that LiteLLM supports."""

from __future__ import annotations

import importlib
import os
import sys
from dataclasses import dataclass
from typing import Any

from scope_torch.errors import InputError
from scope_torch.llm.client import check_url
from scope_torch.llm.failures import SendError
from scope_torch.llm.keys import key_of, redact_logs
from scope_torch.llm.prices import LLMInfo
from scope_torch.llm.retrying import Connection, RetryingClient

# LiteLLM gives lost connections a status too, and often reports them as InternalServerError.
_NO_ANSWER = {"Timeout", "APIConnectionError", "InternalServerError"}


@dataclass(eq=False, repr=False)
class LiteLLMClient(RetryingClient):
    """A ChatClient that sends calls through LiteLLM.

    `LLMInfo.model` is LiteLLM's name for an LLM. Costs are computed from the price list, not from
    LiteLLM's own prices. Tokens are as LiteLLM reports them; it counts them itself if the provider
    does not. LiteLLM reads replies by itself, without a limit on their size: no setting of it gives
    every provider an HTTP client of ours. Use it with providers that you trust.

    Args:
        base_url: Address of the endpoint; None for the provider's own address.
        api_key_env: Environment variable with the key; None for the variable in which LiteLLM
            expects the provider's key.

    The other arguments are those of `RetryingClient`.

    Examples:
        >>> from scope_torch.llm.prices import load_llms
        >>> LiteLLMClient(load_llms())
        LiteLLMClient(LiteLLM, 23 LLMs)
    """

    def __post_init__(self) -> None:
        if self.base_url is not None:
            self.base_url = check_url(self.base_url)
        super().__post_init__()

    def _where(self) -> str:
        return "LiteLLM" if self.base_url is None else f"LiteLLM at {self.base_url}"

    def _provider(self, llm: LLMInfo, /) -> str:
        return self._where() if self.base_url else (llm.model or llm.name).partition("/")[0]

    def _check_access(self) -> None:
        _import_litellm()
        key_of(self.api_key_env, self._where())

    def _connect(self) -> Connection:
        litellm = _import_litellm()
        redact_logs(("LiteLLM", "litellm", "openai", "httpx", "httpcore"), self.api_key_env)
        litellm.suppress_debug_info = True  # else LiteLLM prints advice at every error
        fixed: dict[str, Any] = {"timeout": self.timeout_s, "num_retries": 0, "max_retries": 0}
        if self.base_url is not None:
            fixed["api_base"] = self.base_url
        if self.api_key_env:
            fixed["api_key"] = key_of(self.api_key_env, self._where())
        # As in OpenAIClient, every call has a connection of its own; the header is not enough here.
        aiohttp = sys.modules.get("aiohttp")  # LiteLLM imports it
        session = None
        if aiohttp is not None:
            session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True))
            fixed["shared_session"] = session

        async def send(request: dict[str, Any]) -> Any:
            try:
                return (await litellm.acompletion(**request, **fixed)).model_dump()
            except Exception as error:
                raise _send_error(error) from None

        async def close() -> None:
            if session is not None:
                await session.close()

        return Connection(send, close)


def _send_error(error: Exception) -> SendError:
    kinds = {kind.__name__ for kind in type(error).__mro__}
    status = getattr(error, "status_code", None)
    if not isinstance(status, int):
        raise error  # an error of the program, not an answer of a server
    message = str(getattr(error, "message", ""))
    if kinds & _NO_ANSWER:
        return SendError(f"gave no answer ({message or type(error).__name__})")
    response = getattr(error, "response", None)
    headers = getattr(response, "headers", None) or {}
    return SendError(message, status=status, retry_after=headers.get("retry-after"))


def _import_litellm() -> Any:
    # Else LiteLLM downloads its price list.
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    try:
        return importlib.import_module("litellm")
    except ImportError:
        mend = 'pip install "scope-torch[litellm]"'
        raise InputError(f"calls through LiteLLM need it: {mend}") from None
