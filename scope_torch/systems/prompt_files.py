"""Prompts as text files beside the systems.

A file holds messages, each under a line `[system]`, `[user]` or `[assistant]`; `$name` stands for
an input. `NAME.txt` is the plain prompt of a module, `NAME.few_shot.txt`, if there is one, the
prompt with worked examples, for LLMs whose price-list entry says `prompting = "few_shot"`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import files
from string import Template

from scope_torch.errors import InputError
from scope_torch.llm.chat import Message

_ROLE = re.compile(r"^\[(system|user|assistant)\]$", re.MULTILINE)


def render(path: str, values: Mapping[str, str], prompting: str = "chat") -> tuple[Message, ...]:
    """The conversation of a prompt file.

    Args:
        path: `SYSTEM/MODULE`, below `scope_torch/systems/prompts`.
        values: What `$name` stands for; values are inserted as they are.
        prompting: `chat` or `few_shot`.

    Raises:
        InputError: If there is no such file, or it names a value that is not there.
    """
    try:
        return tuple(
            Message(role, Template(text).substitute(values))
            for role, text in _messages(path, prompting)
        )
    except KeyError as error:
        raise InputError(f"prompt {path} uses {error}, which its module does not give") from None


@lru_cache
def _messages(path: str, prompting: str) -> tuple[tuple[str, str], ...]:
    root = files("scope_torch.systems") / "prompts"
    names = [f"{path}.{prompting}.txt", f"{path}.txt"]
    for name in names if prompting != "chat" else names[1:]:
        if (root / name).is_file():
            parts = _ROLE.split((root / name).read_text(encoding="utf-8"))
            roles, texts = parts[1::2], parts[2::2]
            if parts[0].strip() or not roles:
                raise InputError(f"prompt {name} must begin with [system] or [user]")
            return tuple(zip(roles, (text.strip() for text in texts), strict=True))
    raise InputError(f"there is no prompt {names[-1]}")
