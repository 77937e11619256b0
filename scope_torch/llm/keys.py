"""Keys of endpoints: where they are read, and how they are kept out of texts and logs."""

from __future__ import annotations

import base64
import functools
import logging
import os
import re
from collections.abc import Callable, Iterator
from typing import Any

from scope_torch.errors import InputError

_SECRET_WORDS = ("KEY", "TOKEN", "SECRET", "PASSWORD")
_LEAST_CHARS = 6  # a shorter value could be a part of ordinary words
# Keys of local servers are often words, such as `ollama`, which a reply may contain.
_LEAST_CHARS_IN_REPLIES = 12
_names_read: set[str] = set()  # variables that were read as keys, whatever their name


def check_key_env(env: str | None) -> None:
    """Checks that `env` can be the name of an environment variable.

    Args:
        env: The value of `api_key_env`; None or "" for an endpoint without a key.

    Raises:
        InputError: If it cannot; the message does not show it, because it may be a key.
    """
    if env and not (isinstance(env, str) and env.isascii() and env.isidentifier()):
        raise InputError(
            "api_key_env must be the name of an environment variable that holds the key, such as "
            "OPENAI_API_KEY; the value given is none, and is not shown because it may be a key"
        )


def key_of(env: str | None, where: str) -> str | None:
    """The key in the environment variable `env`; None if no variable is given.

    Args:
        env: Name of the variable; None or "" for an endpoint without a key.
        where: The endpoint, for the error message.

    Raises:
        InputError: If the variable is not set, or its value cannot be a key.
    """
    check_key_env(env)
    if not env:
        return None
    _names_read.add(env)
    key = os.environ.get(env, "").strip()
    if not key:
        # A key can look like a name: gsk_a1B2, hf_Xyz.
        name = f"${env}" if env == env.upper() else "the variable that api_key_env names"
        raise InputError(
            f"{name} is not set; it must hold the key for {where} (or set api_key_env to the "
            "variable that does, or to null if none is needed)"
        )
    # Such a key would be shown in an error of the HTTP library.
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise InputError(f"${env} has characters that no key has; set it anew")
    return key


def redacted(text: str, api_key_env: str | None) -> str:
    """The text in one line of up to 200 characters, without secrets of the environment."""
    return without_secrets(" ".join(text.split()), api_key_env)[:200]


def without_secrets(text: str, api_key_env: str | None = None) -> str:
    """The text with `***` for secrets of the environment, encoded ones included.

    Found are values of `api_key_env`, of variables that `key_of` has read, and of variables with
    KEY, TOKEN, SECRET or PASSWORD in their name: as they are, escaped as in URLs, JSON or HTML, in
    hexadecimal, and in base64, also as a part of a longer text in base64.

    Examples:
        >>> os.environ["DOC_KEY"] = "sk-of-the-docs/1"
        >>> without_secrets("key=sk-of-the-docs%2F1, eDpzay1vZi10aGUtZG9jcy8x", "DOC_KEY")
        'key=***, eDp***'
        >>> del os.environ["DOC_KEY"]
    """
    used = {*_names_read, api_key_env}
    for name, value in os.environ.items():
        named = any(word in name.upper() for word in _SECRET_WORDS)
        secret = value.strip()
        if (named or name in used) and len(secret) >= _LEAST_CHARS:
            text = _pattern(secret).sub("***", text)
    return text


def without_key(text: str, api_key_env: str | None) -> str:
    """A reply with `***` for the key that was sent, encoded ones included.

    Other secrets of the environment stay: the endpoint was not sent them, so the text only happens
    to be equal, and a reply must not depend on variables that have nothing to do with it.
    """
    key = _key_in_replies(api_key_env)
    return _pattern(key).sub("***", text) if key else text


def holds_key(content: bytes, api_key_env: str | None) -> bool:
    """Whether a reply has the key that was sent, as it is; much faster than `without_key`."""
    key = _key_in_replies(api_key_env)
    return bool(key) and key.encode("utf-8", "replace") in content


def _key_in_replies(api_key_env: str | None) -> str:
    """The key to look for in replies; "" for none."""
    key = os.environ.get(api_key_env, "").strip() if api_key_env else ""
    return key if len(key) >= _LEAST_CHARS_IN_REPLIES else ""


@functools.lru_cache(maxsize=256)
def _pattern(secret: str) -> re.Pattern[str]:
    """Matches a secret in all its forms."""
    content = secret.encode("utf-8", "replace")
    forms = ["".join(map(_forms_of, secret)), f"(?i:{content.hex()})", *_base64_cores(content)]
    return re.compile("|".join(forms))


def _forms_of(char: str) -> str:
    """Matches a character as it is, or escaped as in URLs, JSON, Python or HTML."""
    code, itself = ord(char), re.escape(char)
    coded = rf"(?i:u{code:04x}|x{code:02x})"
    # Bounded: in a long run of backslashes, every one of them could be the first.
    forms = [itself, rf"(?i:%(?:25)?{code:02x})", rf"\\{{1,64}}(?:{coded}|{itself})"]
    forms.append(f"&(?i:#0*{code}|#x0*{code:x}{_HTML_NAMES.get(char, '')});")
    return f"(?:{'|'.join(forms)})"


_HTML_NAMES = {"&": "|amp", "<": "|lt", ">": "|gt", '"': "|quot", "'": "|apos"}


def _base64_cores(secret: bytes) -> Iterator[str]:
    """The characters that depend on the secret alone, wherever it begins in an encoded text."""
    for before in range(3):
        first, end = -(-8 * before // 6), 8 * (before + len(secret)) // 6
        padded = bytes(before) + secret + bytes(2)
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            core = encode(padded).decode()[first:end]
            yield "".join(char if char.isalnum() else _forms_of(char) for char in core)


def redact_logs(libraries: tuple[str, ...], api_key_env: str | None) -> None:
    """Keeps the key out of the logs of libraries, whenever they make their loggers.

    At level DEBUG they log the headers of every response, in which a proxy may repeat the key.

    Args:
        libraries: Their names, without the number that some add to it (httpcore2).
        api_key_env: Environment variable with the key.
    """
    make = logging.getLogRecordFactory()
    if not isinstance(make, _RedactingFactory):
        make = _RedactingFactory(make)
        logging.setLogRecordFactory(make)
    make.keys |= {(library, api_key_env) for library in libraries}


class _RedactingFactory:
    """Makes log records without secrets; filters would have to be added to each new logger."""

    def __init__(self, make: Callable[..., logging.LogRecord]) -> None:
        self._make = make
        # (library, variable with its key); replaced as a whole, because threads read it
        self.keys: frozenset[tuple[str, str | None]] = frozenset()

    def __call__(self, *args: Any, **kwargs: Any) -> logging.LogRecord:
        record = self._make(*args, **kwargs)
        # A record that logging.makeLogRecord restores has no name yet.
        library = (record.name or "").partition(".")[0].rstrip("0123456789")
        for name, api_key_env in self.keys:
            if name == library:
                text = without_secrets(record.getMessage(), api_key_env)
                record.msg, record.args = text, None
        return record
