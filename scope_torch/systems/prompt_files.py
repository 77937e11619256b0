"""Prompts as text files next to the systems.

A file contains messages, each under a line `[system]`, `[user]` or `[assistant]`. `$name` is
replaced by an input; write `$$` for a dollar sign. `NAME.txt` is the plain prompt of a module.
`NAME.few_shot.txt`, if there is one, is a prompt with worked examples, for LLMs with `prompting =
"few_shot"` in the price list.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from string import Template
from typing import Any

from scope_torch.errors import InputError
from scope_torch.llm.chat import Message

PROMPTINGS = ("chat", "few_shot")
_ROLE = re.compile(r"^\[(system|user|assistant)\][ \t]*$", re.MULTILINE)


def render(path: str, values: Mapping[str, str], prompting: str = "chat") -> tuple[Message, ...]:
    """The conversation of a prompt file.

    Args:
        path: `SYSTEM/MODULE`, in `scope_torch/systems/prompts`.
        values: The text for each `$name`.
        prompting: `chat` or `few_shot`.

    Raises:
        InputError: If there is no such file, it has another form, or a value is missing.

    Examples:
        >>> messages = render("unidm_er/parse", {"record": "name: pen"})
        >>> [message.role for message in messages]
        ['system', 'user']
    """
    if prompting not in PROMPTINGS:
        raise InputError(f"prompting={prompting!r} must be one of {list(PROMPTINGS)}")
    messages = _messages(path, prompting)
    try:
        return tuple(Message(role, Template(text).substitute(values)) for role, text in messages)
    except KeyError as error:
        raise InputError(f"prompt {path} uses {error}, which its module does not give") from None
    except ValueError as error:
        raise InputError(f"prompt {path}: {error}; write $$ for a dollar sign") from None


def one_call(
    path: str, values: Callable[[Mapping[str, Any]], Mapping[str, str]] = dict
) -> Callable[[Mapping[str, Any], str], list[tuple[Message, ...]]]:
    """The argument `prompts` of a `Module` that makes one call from one prompt file.

    Args:
        path: Path of the prompt; see `render`.
        values: Makes the text for each `$name` from the inputs; by default the inputs themselves.
    """
    return lambda inputs, prompting: [render(path, values(inputs), prompting)]


def fingerprint(system: str) -> str:
    """A short hash of all prompt files of a system, for `CompoundSystem.version`."""
    digest = hashlib.sha256()
    prompts = (file for file in (_root() / system).iterdir() if file.name.endswith(".txt"))
    for file in sorted(prompts, key=lambda file: file.name):
        digest.update(f"{file.name}\n{file.read_text(encoding='utf-8')}\n".encode())
    return digest.hexdigest()[:8]


def _root() -> Traversable:
    return files("scope_torch.systems") / "prompts"


@lru_cache
def _messages(path: str, prompting: str) -> tuple[tuple[str, str], ...]:
    names = [f"{path}.{prompting}.txt", f"{path}.txt"]
    for name in names if prompting != "chat" else names[1:]:
        if (_root() / name).is_file():
            parts = _ROLE.split((_root() / name).read_text(encoding="utf-8"))
            roles, texts = parts[1::2], parts[2::2]
            if parts[0].strip() or not roles or roles[0] == "assistant" or roles[-1] != "user":
                raise InputError(
                    f"prompt {name} must begin with [system] or [user] and end with [user]"
                )
            return tuple(zip(roles, (text.strip() for text in texts), strict=True))
    raise InputError(f"there is no prompt {names[-1]}")
