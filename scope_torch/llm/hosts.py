"""Well-known hosts of LLMs, and the environment variable in which each one's key usually is."""

from __future__ import annotations

import os
import urllib.parse

from scope_torch.errors import InputError

# As the client or the documentation of each provider names it (read on 2026-11-25); of two the
# first that is set, as Google's own client prefers them.
_KEYS_OF_HOST = {
    "api.anthropic.com": ["ANTHROPIC_API_KEY"],
    "api.deepseek.com": ["DEEPSEEK_API_KEY"],
    "api.fireworks.ai": ["FIREWORKS_API_KEY"],
    "api.groq.com": ["GROQ_API_KEY"],
    "api.mistral.ai": ["MISTRAL_API_KEY"],
    "api.openai.com": ["OPENAI_API_KEY"],
    "api.together.xyz": ["TOGETHER_API_KEY"],
    "api.x.ai": ["XAI_API_KEY"],
    "generativelanguage.googleapis.com": ["GOOGLE_API_KEY", "GEMINI_API_KEY"],
    "openrouter.ai": ["OPENROUTER_API_KEY"],
}


def key_env_of(base_url: str) -> str | None:
    """The environment variable with the key for an address; None if the host is not well known.

    Only over https, only for exactly this host and the usual port: a key goes to nobody else.

    Args:
        base_url: A URL, as `check_url` returns it.

    Raises:
        InputError: If the host is well known, and its variable is not set.

    Examples:
        >>> os.environ["XAI_API_KEY"] = "xai-of-the-docs"
        >>> key_env_of("https://api.x.ai/v1")
        'XAI_API_KEY'
        >>> key_env_of("https://api.x.ai.example.org/v1") is None
        True
        >>> del os.environ["XAI_API_KEY"]
    """
    parts = urllib.parse.urlsplit(base_url)
    names = _KEYS_OF_HOST.get(parts.hostname or "")
    if names is None or parts.scheme != "https" or parts.port not in (None, 443):
        return None
    for name in names:
        if os.environ.get(name, "").strip():
            return name
    raise InputError(
        f"${' or $'.join(names)} is not set; it must hold the key for {parts.hostname} (or name "
        f"the variable that does: Endpoint({base_url!r}, api_key_env=...), --api-key-env)"
    )
