"""Queries in flight: which LLM answers each module, until the application has its answer."""

from __future__ import annotations

import itertools
import logging
import secrets
import threading
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from scope_torch.factors import variable_of
from scope_torch.llm.price_list import PriceList
from scope_torch.runs.asked import ANEW, CACHE_OFF
from scope_torch.serve.ledger import Ledger

logger = logging.getLogger(__name__)

HEADER = "x-scope-query"
_MOST_TOLD = 5  # refusals of different words
_LEFT_OVER_S = 130.0  # clients of a run that failed wait up to 60 s, twice, to send again

# A mend, where a run is no observation.
_OWN_CLIENT = (
    "make a client for each query, or wrap the kept one with scope_torch.serve.current.tagged()"
)


class Signs(NamedTuple):
    """Signs that requests are booked on another query than that of their run.

    Attributes:
        strays: Requests that named no query in flight.
        unasked: Runs that answered without a request.
        late: The strays that named a query that had ended.
    """

    strays: int = 0
    unasked: int = 0
    late: int = 0


class QueryInFlight:
    """One run of the application, and the LLMs that answer its requests.

    `Endpoint.query` makes it. The application belongs to it by one of three: its base URL, a
    header, or the environment of its process.

    Attributes:
        key: Its key in the path `/q/{key}/v1` and in the header; not to be guessed.
        name: Name for messages; None for none.
        assignment: Module -> LLM.
        ledger: The bills of this query.
        is_asked: Whether a request of it that asks an LLM was forwarded.
        is_read: Whether the application has asked for the choices.
        is_answered: Whether the application has returned; whoever runs it says so.
        has_failed: Whether it has raised, likewise.
        troubles: Module -> what `trouble_of` says of its last answer.
        accounts: Module -> what `account_trouble_of` says of it.
        refused: Why its last request that was not forwarded was refused; None if all were.
        prices: What its requests cost; None in another process, where nothing is booked.
        signs: The endpoint's signs of mixed-up requests when it began, see `Queries`; those that
            are late, when a run was last looked at: nobody has told of later ones.
    """

    def __init__(
        self,
        key: str,
        url: str,
        assignment: Mapping[str, str],
        name: str | None = None,
        token: str | None = None,
        prices: PriceList | None = None,
    ) -> None:
        self._token, self.prices = token or "scope", prices
        self.key, self.name, self.assignment = key, name, dict(assignment)
        self.ledger = Ledger()
        self.is_asked = self.is_read = self.is_answered = self.has_failed = False
        self.troubles: dict[str, str | None] = {}
        self.accounts: dict[str, str | None] = {}
        self.refused: str | None = None
        self.signs = Signs()
        self._url = f"{url}/q/{key}"
        self._changed = threading.Condition()
        self._in_flight, self._ended = 0, False

    def __repr__(self) -> str:
        return f"QueryInFlight({self.name or self.key}, {self.assignment})"

    def __reduce__(self) -> Any:
        """In another process it tells the address; what is asked there is booked here."""
        url = self._url.removesuffix(f"/q/{self.key}")
        return QueryInFlight, (self.key, url, self.assignment, self.name, self._token)

    @property
    def base_url(self) -> str:
        """The base URL for OpenAI's client; Anthropic's and Google's take it without `/v1`."""
        return f"{self._url}/v1"

    @property
    def headers(self) -> dict[str, str]:
        """Headers for a client whose base URL is `Endpoint.url` + `/v1`."""
        return {HEADER: self.key}

    @property
    def env(self) -> dict[str, str]:
        """Environment variables for a process that runs the application; the choices too."""
        return {
            "OPENAI_BASE_URL": self.base_url,
            "OPENAI_API_BASE": self.base_url,
            "ANTHROPIC_BASE_URL": self._url,
            "GOOGLE_GEMINI_BASE_URL": self._url,
            "OPENAI_API_KEY": self._token,
            "ANTHROPIC_API_KEY": self._token,
            "GOOGLE_API_KEY": self._token,
            **_variables(self.assignment),
        }

    def note(self, module: str, trouble: str | None, account: str | None) -> None:
        """Notes what the last answer says of the LLM of a module, and of its account."""
        self.troubles[module], self.accounts[module] = trouble, account

    def account_fault(self) -> str | None:
        """Why the provider answers no more, whatever the application made of that; None if not."""
        for module, trouble in self.accounts.items():
            if trouble is not None:
                why = "no credit is left" if trouble == "credit" else "it does not accept the key"
                llm = self.assignment[module]
                return f"the provider of {llm!r} ({module}) answered that {why}; mend it, and go on"
        return None

    def enter(self) -> bool:
        """Counts a request as in flight; False if the query has ended."""
        with self._changed:
            self._in_flight += not self._ended
            return not self._ended

    def refuse(self, error: Exception) -> str | None:
        """Notes why a request was not forwarded; returns that, None if the query has ended."""
        with self._changed:
            if self._ended:
                return None
            self.refused = str(error).replace(f"/q/{self.key}", "")
            return self.refused

    def leave(self) -> None:
        """Counts a request as ended, after it was booked."""
        with self._changed:
            self._in_flight -= 1
            self._changed.notify_all()

    def end(self, timeout_s: float) -> None:
        """Refuses later requests, and waits for those in flight, because they are paid for."""
        with self._changed:
            self._ended = True
            self._changed.wait_for(lambda: not self._in_flight, timeout_s)


class Queries:
    """The queries in flight of one endpoint, by their keys, and the signs of mixed-up requests.

    Args:
        token: What applications must send as their key; None for nothing.
    """

    def __init__(self, token: str | None = None) -> None:
        self._token = token
        self._number = itertools.count(1)
        self._changed = threading.Condition()  # guards all that follows
        self._by_key: dict[str, QueryInFlight] = {}
        self._num_asked, self._signs, self._late_told = 0, Signs(), 0
        self._told = set[str]()  # of refusals
        self._had_ended: dict[str, float] = {}  # until when what it asks on is no sign

    def add(
        self, url: str, assignment: Mapping[str, str], name: str | None, prices: PriceList
    ) -> QueryInFlight:
        """Registers a query, which is booked at these prices."""
        key = f"{next(self._number)}-{secrets.token_hex(4)}"
        query = QueryInFlight(key, url, assignment, name, self._token, prices)
        with self._changed:
            self._by_key[key] = query
            query.signs = self._signs._replace(late=self._late_told)
        return query

    def find(self, key: str) -> QueryInFlight | None:
        """The query with this key; None if there is none, or not any more."""
        return self._by_key.get(key)

    def enter(self, query: QueryInFlight, asks: bool) -> bool:
        """Counts a request of a query as in flight; False if the query has ended.

        Args:
            query: The query.
            asks: Whether the request asks an LLM; one that counts tokens does not.
        """
        with self._changed:
            if not query.enter():
                return False
            if asks:
                self._num_asked += not query.is_asked
                query.is_asked = True
                self._changed.notify_all()
            return True

    def refuse(self, key: str, error: Exception) -> None:
        """Notes and tells why a request of a query in flight was not forwarded.

        An application that goes on, say without what it would have looked up, is another one.
        """
        query = self.find(key)
        why = None if query is None else query.refuse(error)
        with self._changed:
            if why is None or why in self._told or len(self._told) == _MOST_TOLD:
                return
            self._told.add(why)
        logger.warning(
            "the endpoint refused a request of the app: %s. If the app goes on without it, what is "
            "measured is an app without it (this is said once)",
            why,
        )

    def stray(self, key: str | None) -> None:
        """Counts a request that names no query in flight; `key` is the one that it names.

        A run that failed has no answer that could be wrong, and leaves calls behind: where one call
        of `asyncio.gather` raises, the others go on. They are refused, and no sign.
        """
        with self._changed:
            if time.monotonic() < self._had_ended.get(key or "", 0.0):
                return
            strays, unasked, late = self._signs
            self._signs = Signs(strays + 1, unasked, late + (key in self._had_ended))

    def remove(self, query: QueryInFlight) -> None:
        """Forgets a query."""
        with self._changed:
            self._by_key.pop(query.key, None)
            self._had_ended[query.key] = query.has_failed * (time.monotonic() + _LEFT_OVER_S)
            if query.is_answered and not query.is_asked:
                self._signs = self._signs._replace(unasked=self._signs.unasked + 1)
            self._changed.notify_all()

    def fault_of(self, query: QueryInFlight) -> str | None:
        """Why a run that has ended is no observation, and the mend; None if it is one.

        It made no request, or its requests cannot be told from those of other runs. As long as all
        requests came for one query, it waits for the first request, or the end, of those in
        flight: a client that is kept asks for one query on behalf of all.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self._num_asked > 1 or all(q.is_asked for q in self._by_key.values())
            )
            strays, unasked, late = (
                now - before for now, before in zip(self._signs, query.signs, strict=True)
            )
            num_asked, self._late_told = self._num_asked, self._signs.late
        if strays or late:
            return (
                "a request came for a query that had ended, or for none: the app keeps a "
                f"client that was made for another query ({_OWN_CLIENT}), asks in a thread without "
                "its query (start it with contextvars.copy_context().run), or asks on after its "
                f"answer (let it wait for its calls); {ANEW}"
            )
        if query.is_answered and not query.is_asked:
            return _of_unasked(query, num_asked)
        if unasked:
            return (
                "another run answered without a request to the endpoint, and this one may have "
                f"made its requests: {_OWN_CLIENT}, or {CACHE_OFF}; {ANEW}"
            )
        return None


def _variables(assignment: Mapping[str, str]) -> dict[str, str]:
    """The variable with the choice of each module; none that two modules with others share."""
    choices: dict[str, set[str]] = {}
    for module, choice in assignment.items():
        choices.setdefault(variable_of(module), set()).add(str(choice))
    return {name: found.pop() for name, found in choices.items() if len(found) == 1}


def _of_unasked(query: QueryInFlight, num_asked: int) -> str:
    if query.refused is not None:
        return f"the app answered, but each of its requests was refused: {query.refused}"
    said = "the app answered without a request to the endpoint, so no LLM was asked: "
    if not num_asked:
        return (
            f"{said}give its client the endpoint's address, such as "
            f"base_url=scope_torch.serve.current.base_url(), and {CACHE_OFF}"
        )
    kept = f"or, if its client was made for another query, {_OWN_CLIENT}"
    return f"{said}{CACHE_OFF}; {kept}; {ANEW}"
