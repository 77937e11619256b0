"""Queries in flight: which LLM answers each module, until the application has its answer."""

from __future__ import annotations

import itertools
import secrets
import threading
from collections.abc import Mapping

from scope_torch.serve.ledger import Ledger

HEADER = "x-scope-query"


class QueryInFlight:
    """One run of the application, and the LLMs that answer its requests.

    `Endpoint.query` makes it. The application belongs to it by one of three: its base URL, a
    header, or the environment of its process.

    Attributes:
        key: Its key in the path `/q/{key}/v1` and in the header; not to be guessed.
        name: Name for messages; None for none.
        assignment: Module -> LLM.
        ledger: The bills of this query.
    """

    def __init__(
        self,
        key: str,
        url: str,
        assignment: Mapping[str, str],
        name: str | None = None,
        token: str | None = None,
    ) -> None:
        self._token = token or "scope"
        self.key, self.name, self.assignment = key, name, dict(assignment)
        self.ledger = Ledger()
        self._url = f"{url}/q/{key}"
        self._changed = threading.Condition()
        self._in_flight, self._ended = 0, False

    def __repr__(self) -> str:
        return f"QueryInFlight({self.name or self.key}, {self.assignment})"

    @property
    def base_url(self) -> str:
        """The base URL for a client of OpenAI's API; Anthropic's takes it without `/v1`."""
        return f"{self._url}/v1"

    @property
    def headers(self) -> dict[str, str]:
        """Headers for a client whose base URL is `Endpoint.url` + `/v1`."""
        return {HEADER: self.key}

    @property
    def env(self) -> dict[str, str]:
        """Environment variables for a process that runs the application."""
        return {
            "OPENAI_BASE_URL": self.base_url,
            "OPENAI_API_BASE": self.base_url,
            "ANTHROPIC_BASE_URL": self._url,
            "OPENAI_API_KEY": self._token,
            "ANTHROPIC_API_KEY": self._token,
        }

    def enter(self) -> bool:
        """Counts a request as in flight; False if the query has ended."""
        with self._changed:
            self._in_flight += not self._ended
            return not self._ended

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
    """The queries in flight of one endpoint, by their keys.

    Args:
        token: What applications must send as their key; None for nothing.
    """

    def __init__(self, token: str | None = None) -> None:
        self._token = token
        self._number = itertools.count(1)
        self._by_key: dict[str, QueryInFlight] = {}

    def add(self, url: str, assignment: Mapping[str, str], name: str | None) -> QueryInFlight:
        """Registers a query."""
        key = f"{next(self._number)}-{secrets.token_hex(4)}"
        query = self._by_key[key] = QueryInFlight(key, url, assignment, name, self._token)
        return query

    def find(self, key: str) -> QueryInFlight | None:
        """The query with this key; None if there is none, or not any more."""
        return self._by_key.get(key)

    def remove(self, query: QueryInFlight) -> None:
        """Forgets a query."""
        self._by_key.pop(query.key, None)
