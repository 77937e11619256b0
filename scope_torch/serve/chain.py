"""A choice and its fallbacks: which configuration answers, and what moves the endpoint to another.

A certificate is about a configuration, an LLM for every module. So the endpoint moves as a whole:
all modules are answered by the first configuration of the chain in which no module has failed of
late. Only a query that is under way at such a moment may get answers of two configurations.

| the upstream | |
| --- | --- |
| 408, 5xx, a timeout, a lost connection | the next configuration answers this request |
| 410, 404 about a model, 400 whose code, type or words say that there is no such | likewise |
| 429 | likewise if it asks for more than 5 s, or is the second of the LLM in this module |
| 200 whose body is an error with such a code, or type of 5xx, and no reply | likewise |
| a stream that is cut, or has such an error | the next configuration answers the next request |
| anything else, such as 400, 401, 403 | the application gets it: another LLM would hide it |
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from scope_torch.factors import LLM
from scope_torch.llm.failures import RETIRED, SAYS_RETIRED, about_account, seconds_of
from scope_torch.serve.apis import APIS
from scope_torch.serve.reading import Reading
from scope_torch.serve.upstream import Answer, StreamCut

COOL_DOWN_S = 30.0
_PATIENCE_S = 5.0  # of a Retry-After that the application's own client waits for
_LONGEST_S = 3600.0
_FAILED = {"overloaded_error": 529, "api_error": 500, "server_error": 500}
_ABOUT_A_MODEL = re.compile(rb"model|deployment|no endpoints", re.IGNORECASE)
_MOST_BYTES = 1 << 16  # of an error

Pair = tuple[str, str]


class Chain:
    """Whole configurations, the choice first; used in one thread.

    What has failed is not asked until its cool-down is over. Then one request tries it, while the
    others wait for what that one finds. An LLM that fails does so with every effort and prompt.

    Args:
        entries: Module -> LLM of each; all have the same modules.
        cool_down_s: How long an LLM that failed is not asked, in seconds; longer, up to an hour, if
            the upstream says so.
        clock: Tells the seconds.

    Attributes:
        entries: As given.

    Examples:
        >>> chain = Chain([{"planner": "nano"}, {"planner": "mini"}])
        >>> chain.fail("planner", "nano")
        >>> chain.active, next(chain.attempts("planner"))
        (1, {'planner': 'mini'})
    """

    def __init__(
        self,
        entries: Sequence[Mapping[str, str]],
        cool_down_s: float = COOL_DOWN_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.entries = [dict(one) for one in entries]
        self._llms = [{module: _llm(name) for module, name in one.items()} for one in entries]
        self._cool_down_s, self._clock = cool_down_s, clock
        self._until: dict[Pair, float] = {}  # when module and LLM that failed are tried again
        self._limited: dict[Pair, float] = {}  # when they had to wait for the first time

    @property
    def active(self) -> int:
        """Position of the configuration that answers; 0 too if each has failed."""
        return self._first() or 0

    def attempts(self, module: str) -> Iterator[dict[str, str]]:
        """The configurations that a request goes to, one after the other, as long as they fail.

        If each has failed of late, it is the choice alone.

        Args:
            module: Who asks.

        Yields:
            Module -> LLM.
        """
        tried: list[str] = []
        at: int | None = self.active
        while at is not None:
            pair = module, self._llms[at][module]
            if pair in self._until:  # this request tries it, the others wait
                self._until[pair] = max(self._until[pair], self._clock() + self._cool_down_s)
            yield self.entries[at]
            tried.append(pair[1])
            at = self._first(module, tried)

    def judge(self, module: str, llm: str, answer: Answer) -> str | None:
        """Takes in an answer; why another LLM should answer, or None if the application gets it."""
        pair, now = (module, _llm(llm)), self._clock()
        reason, wait_s = trouble_of(answer), _wait_s(answer.headers)
        if reason == "429" and wait_s <= _PATIENCE_S:
            since = now - self._limited.get(pair, -math.inf)
            if since > self._cool_down_s and pair not in self._until:
                self._limited[pair] = now
                return None
        if reason is None:
            self._until.pop(pair, None)
            self._limited.pop(pair, None)
        else:
            self.fail(module, llm, wait_s)
        return reason

    def fail(self, module: str, llm: str, wait_s: float = 0.0) -> None:
        """Leaves an LLM out for a while, at least for `wait_s` seconds."""
        wait_s = min(max(wait_s, self._cool_down_s), _LONGEST_S)
        self._until[module, _llm(llm)] = self._clock() + wait_s

    async def watched(
        self, module: str, llm: str, pieces: AsyncIterator[bytes], reading: Reading
    ) -> AsyncIterator[bytes]:
        """The pieces of a stream, which fails if it is cut, or has an error like a failed answer.

        Args:
            module: Who asked.
            llm: Who answers.
            pieces: The pieces.
            reading: What the stream has told so far; an error is known before its piece comes.
        """
        try:
            async for piece in pieces:
                if trouble_of(as_answer(reading.error)):
                    self.fail(module, llm)
                yield piece
        except StreamCut:
            self.fail(module, llm)
            raise

    def _first(self, module: str = "", tried: Collection[str] = ()) -> int | None:
        """The first configuration in which nothing has failed; None if there is none.

        An LLM that failed in one module often fails in all of them: so those that do without it
        come before those that only have another one in that module.
        """
        now = self._clock()
        down = {pair for pair, until in self._until.items() if now < until}
        failing = {llm for _, llm in down}
        open_ = [
            at
            for at, entry in enumerate(self._llms)
            if down.isdisjoint(entry.items()) and entry.get(module) not in tried
        ]
        return min(
            open_, key=lambda at: not failing.isdisjoint(self._llms[at].values()), default=None
        )


def _llm(choice: str) -> str:
    """The LLM of a choice, which may be more."""
    return LLM.parse(choice).llm


def as_answer(error: object) -> Answer:
    """An error that came with status 200, or None, as an answer that is nothing else."""
    return Answer(200, {}, json.dumps({"error": error}).encode())


def troubles_of(answer: Answer) -> tuple[str | None, str | None]:
    """What `trouble_of` and `account_trouble_of` say of an answer."""
    return trouble_of(answer), account_trouble_of(answer)


def trouble_of(answer: Answer) -> str | None:
    """Why another LLM should be asked, in a word; None if the answer is for the application."""
    status, content = answer.status, answer.content or b""
    if answer.refused is not None:
        lost = "timeout" if status == 504 else "connection"
        return lost if answer.refused.again else None
    if status in (200, 400):
        error = _error_of(content)
        code = error.get("code")
        if status == 400:
            found = [one for one in (code, error.get("type")) if one in RETIRED]
            says = SAYS_RETIRED.search(str(error.get("message")))
            return found[0] if found else RETIRED[1] if says else None
        named = [one for one in _FAILED if one in (code, error.get("type"))]
        status = code if isinstance(code, int) else _FAILED[named[0]] if named else status
    if status == 404 and not _ABOUT_A_MODEL.search(content):
        return None  # a wrong path, or a file that the request names
    return str(status) if status in (404, 408, 410, 429) or 500 <= status < 600 else None


def account_trouble_of(answer: Answer) -> str | None:
    """What of the account an answer is about, `key` or `credit`; None if of neither.

    Only what the error says counts: some servers repeat the request beside it.
    """
    if answer.refused is not None:
        return None
    error, status = _error_of(answer.content or b""), answer.status
    if status == 200:  # the error has its status as code, or says it in words alone
        status = code if isinstance(code := error.get("code"), int) else 400
    # xAI's error is a text.
    said = [error.get(name) for name in ("code", "status", "type", "message", "error")]
    return about_account(status, " ".join(one for one in said if isinstance(one, str)))


def _error_of(content: bytes) -> dict[str, Any]:
    """The error of a reply that is one and nothing else; Mistral's and xAI's is the reply."""
    try:
        reply: Any = json.loads(content) if len(content) <= _MOST_BYTES else None
    except (ValueError, RecursionError):
        return {}
    if isinstance(reply, list) and len(reply) == 1:  # as Gemini's, to a client of OpenAI
        (reply,) = reply
    said = [key for api in APIS.values() for key in api.said]
    if not isinstance(reply, dict) or any(map(reply.get, said)):
        return {}
    error = reply.get("error", reply)
    return error if isinstance(error, dict) else reply if isinstance(error, str) else {}


def _wait_s(headers: Mapping[str, str]) -> float:
    """The seconds that an answer asks to wait."""
    in_ms = seconds_of(headers.get("retry-after-ms"))
    wait_s = seconds_of(headers.get("retry-after")) if math.isnan(in_ms) else in_ms / 1000
    return wait_s if wait_s > 0 else 0.0
