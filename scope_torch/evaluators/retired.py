"""LLMs that their provider has retired, as a run that fails has met them; and refused accounts.

An error tells them as `module=LLM`, with a word of the provider's answer, such as `404`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, TypeGuard

from scope_torch.evaluators.calling import is_usual
from scope_torch.factors import LLM
from scope_torch.llm.failures import RETIRED, account_in
from scope_torch.serve.chain import trouble_of
from scope_torch.serve.upstream import Answer

_MARK = "scope_retired"
_PASSING = re.compile(r"timeout|connection|408|429|5\d\d")  # of what `trouble_of` says
_MOST_CAUSES = 10


@contextmanager
def naming_retired(models: Mapping[str, str]) -> Generator[None]:
    """Says of an error which LLMs are retired, if it is that of a client that got such an answer.

    Clients have the status as `status_code` or `code`. Who is meant is whose name is in the text;
    if it is nobody's, one of them, and only if the error has a code that only LLMs have.

    Args:
        models: Module -> LLM of the run.

    Examples:
        >>> class NotFound(Exception):
        ...     status_code = 404
        >>> try:
        ...     with naming_retired({"plan": "nano", "solve": "openai/mini"}):
        ...         raise NotFound("the model `mini` does not exist")
        ... except NotFound as error:
        ...     retired_in(error)
        {'solve=openai/mini': '404'}
    """
    try:
        yield
    except Exception as error:
        for seen in _causes(error):
            names = [f"{module}={llm}" for module, llm in models.items()]
            meant = [f"{m}={llm}" for m, llm in models.items() if _is_in(llm, str(seen))]
            said = _said_by(seen)
            # A tool of the application may miss a file or a page, such as that of a 3D model.
            if said and (meant or said in RETIRED or getattr(seen, "code", None) in RETIRED):
                mark(error, dict.fromkeys(meant or [" or ".join(names)], said))
                break
        raise


def is_of_account(error: BaseException) -> bool:
    """Whether a client raised it because its key is not accepted, or no credit is left.

    By the words of an error with a status: a page that a tool looks at may answer 401, too.

    Examples:
        >>> class BadRequestError(Exception):
        ...     status_code = 400
        >>> is_of_account(BadRequestError("Your credit balance is too low to access the API."))
        True
        >>> is_of_account(BadRequestError("the prompt is too long"))
        False
    """
    return any(
        account_in(status, f"{type(one).__name__}: {one}") is not None
        for one in _causes(error)
        for status in _statuses(one)
    )


def retired_by(troubles: Mapping[str, str | None], models: Mapping[str, str]) -> dict[str, str]:
    """Which LLMs are retired.

    Args:
        troubles: Module -> what `trouble_of` says of an answer.
        models: Module -> LLM.

    Examples:
        >>> retired_by({"plan": "404", "solve": "503"}, {"plan": "nano", "solve": "mini"})
        {'plan=nano': '404'}
    """
    return {f"{module}={models[module]}": said for module, said in troubles.items() if _ends(said)}


def mark(error: BaseException, retired: Mapping[str, str]) -> None:
    """Says of an error which LLMs are retired."""
    with suppress(AttributeError):  # it may be frozen
        setattr(error, _MARK, dict(retired))


def retired_in(error: BaseException) -> dict[str, str]:
    """What was said of an error."""
    return getattr(error, _MARK, {})


def _said_by(error: BaseException) -> str | None:
    """What a client's error says of an LLM that is retired; None for any other error."""
    code: Any = getattr(error, "code", None)
    if not (statuses := _statuses(error)):
        return None
    told = {"code": code if isinstance(code, str) else None, "message": str(error)}
    said = trouble_of(Answer(statuses[0], {}, json.dumps({"error": told}).encode()))
    return said if _ends(said) else None


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An error, and what it was raised from, as far as it can be read; of a group, the first."""
    seen: BaseException | None = error
    for _ in range(_MOST_CAUSES):
        if seen is None or not is_usual(seen):
            return
        yield seen
        raised_from = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)
        seen = seen.exceptions[0] if isinstance(seen, BaseExceptionGroup) else raised_from


def _statuses(error: BaseException) -> list[int]:
    """The status of an answer that a client has made an error of; none of any other error."""
    told = getattr(error, "status_code", None), getattr(error, "code", None)
    return [one for one in told if type(one) is int]


def _ends(trouble: str | None) -> TypeGuard[str]:
    """Whether a trouble does not pass."""
    return trouble is not None and _PASSING.fullmatch(trouble) is None


def _is_in(llm: str, text: str) -> bool:
    """Whether a text names an LLM, with its provider or without."""
    name = re.escape(LLM.parse(llm).llm.rpartition("/")[2])
    return re.search(rf"(?<![\w.-]){name}(?!\.?[\w-])", text) is not None
