"""The endpoint that an unchanged application asks, and its life."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
import math
import re
import secrets
import socket
import threading
import urllib.parse
from collections.abc import Generator, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from scope_torch.errors import InputError
from scope_torch.factors import own_factors
from scope_torch.files import close_in_children
from scope_torch.llm.choices import check_factors
from scope_torch.llm.client import check_url
from scope_torch.llm.hosts import key_env_of
from scope_torch.llm.price_list import PriceList
from scope_torch.serve.apis import check_extra_body
from scope_torch.serve.app import App, Settings
from scope_torch.serve.chain import COOL_DOWN_S, Chain
from scope_torch.serve.current import IN_FLIGHT
from scope_torch.serve.headers import is_loopback
from scope_torch.serve.ledger import Ledger
from scope_torch.serve.queries import Queries, QueryInFlight
from scope_torch.serve.server import server_of
from scope_torch.serve.upstream import Upstream

if TYPE_CHECKING:
    import uvicorn

logger = logging.getLogger(__name__)

_HOST = re.compile(r"[A-Za-z0-9.:_-]+")
_STARTING_S = 30.0
_CLOSING_S = 5.0  # beyond the time of the requests
_INTERRUPTED_S = 1.0  # enough if no request is in flight


class Endpoint:
    """An endpoint on this machine that answers for modules; a context manager.

    It speaks OpenAI's chat completions and responses, Anthropic's messages, and Gemini's
    generateContent. An application asks it for the model `scope/planner`; `planner` is the module,
    and the query in flight says which LLM answers. The request goes to the upstream with the LLM's
    name, the reply comes back as it is, and its tokens are booked for module and query.

    A reply without usage that can be believed, or a cut one, is booked by an upper estimate. A
    reply is read to its end even if the application hangs up, because it is paid for.

    Args:
        base_url: The upstream: the address in front of `/chat/completions`, `/responses`,
            `/messages` and `/models/...:generateContent`, such as `https://api.openai.com/v1`.
        api_key_env: Environment variable that holds the upstream's key; "" for no key. None: that
            of a well-known host, such as OPENAI_API_KEY for api.openai.com, else no key.
        prices: Prices of the LLMs; None for the default list.
        host: Where it listens. All but the loopback interface opens it to other machines, which
            then spend your money; give a token.
        port: Its port; 0 for a free one.
        prefix: In front of the modules' names; the names alone are understood too.
        timeout_s: The longest time of one request in seconds.
        extra_body: Keys that every request gets, such as {"service_tier": "flex"}.
        chosen: Module -> LLM for good: requests that name no query are answered by it.
        fallbacks: Other configurations of the same modules: where an LLM fails, the first of them
            answers in which nothing does, see `scope_torch.serve.chain`.
        cool_down_s: How long an LLM that failed is not asked, in seconds.
        allowed_hosts: Other names of this machine that applications use in the base URL, such as
            host.docker.internal in a container.
        token: What every request must bring as its key (`OPENAI_API_KEY` and the like);
            None for none, or with `allowed_hosts` for a random one.
        asks_for_usage: Whether streamed chat completions are asked for their usage. An upstream
            that refuses `stream_options` gets the request again without it, and is not asked again.

    Attributes:
        ledger: The bills of all queries together; `GET /metrics` tells them to Prometheus.
        chain: `chosen` and its fallbacks; None for none.
        prices: Prices of the LLMs.
        token: What every request must bring as its key; None for nothing.
        token_is_random: Whether it was made here.

    Raises:
        InputError: If a setting cannot be used, or a package is missing.

    Examples:
        >>> from scope_torch.llm.price_list import PriceList
        >>> from scope_torch.llm.prices import LLMInfo
        >>> prices = PriceList({"mini": LLMInfo("mini", 0.25, 2.0)})
        >>> with Endpoint("http://127.0.0.1:8000/v1", prices=prices) as endpoint:
        ...     with endpoint.query({"planner": "mini"}) as query:
        ...         run_application = query.env  # or query.base_url, query.headers
        >>> query.ledger.cost_usd
        0.0
    """

    def __init__(
        self,
        base_url: str,
        *,
        api_key_env: str | None = None,
        prices: PriceList | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        prefix: str = "scope/",
        timeout_s: float = 600.0,
        extra_body: Mapping[str, Any] | None = None,
        chosen: Mapping[str, str] | None = None,
        fallbacks: Sequence[Mapping[str, str]] = (),
        cool_down_s: float = COOL_DOWN_S,
        allowed_hosts: Sequence[str] = (),
        token: str | None = None,
        asks_for_usage: bool = True,
    ) -> None:
        _check_packages()
        if not (isinstance(timeout_s, int | float) and 0 < timeout_s < math.inf):
            raise InputError(f"timeout_s={timeout_s!r} must be a number of seconds above 0")
        if not 0 <= port < 2**16:
            raise InputError(f"port={port} must be from 0 to {2**16 - 1}; 0 takes a free one")
        unchecked: Any = prices
        if not (unchecked is None or isinstance(unchecked, PriceList)):
            raise InputError(
                f"prices={unchecked!r:.80} must be a PriceList, such as PriceList('prices.toml')"
            )
        if prices is not None and prices.batch:
            raise InputError(
                "prices=PriceList(batch=True) and an endpoint: it forwards live calls, which cost "
                "more than a batch; leave out batch=True"
            )
        self._host, self._port, self._timeout_s = host, port, timeout_s
        url = check_url(base_url)
        self.prices = (prices or PriceList()).asked_at(url)
        key_env = key_env_of(url) if api_key_env is None else api_key_env
        self._upstream = Upstream(url, key_env, timeout_s)
        self.token = _checked_token(token, allowed_hosts)
        self.token_is_random = token is None and self.token is not None
        hosts = frozenset(name.lower() for name in (host, *allowed_hosts))
        if self.token is None and not is_loopback(host):
            logger.warning(
                "the endpoint listens on %s without a token: whoever reaches it spends your money; "
                "give it a token", host,
            )  # fmt: skip
        self._queries, self.ledger = Queries(self.token), Ledger()
        extra = check_extra_body(extra_body)
        self.chain = self._chain(chosen, fallbacks, cool_down_s)
        host_asked = urllib.parse.urlsplit(url).hostname or ""
        told = self.prices, prefix, hosts, self.token, extra, host_asked
        settings = Settings(*told, self.chain, asks_for_usage)
        self._app = App(settings, self._queries, self._upstream, self.ledger)
        self._address: tuple[str, int] | None = None
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        self._sharing, self._num_sharing, self._is_shared = threading.Lock(), 0, False

    def __repr__(self) -> str:
        return f"Endpoint({self.url if self._address else 'not started'})"

    def __enter__(self) -> Endpoint:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def is_started(self) -> bool:
        """Whether it listens."""
        return self._address is not None

    @property
    def url(self) -> str:
        """Its address without path, such as `http://127.0.0.1:41234`.

        Raises:
            InputError: If it is not started.
        """
        if self._address is None:
            raise InputError("the endpoint is not started; say `with Endpoint(...) as endpoint:`")
        host, port = self._address
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def start(self) -> None:
        """Starts to listen, in a thread.

        Raises:
            InputError: If the address cannot be used, or it is started already.
        """
        if self.is_started:
            raise InputError("the endpoint is started already; stop it first")
        self.stop()  # an interrupt may have left it before its end
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        try:
            listener = socket.create_server((self._host, self._port), family=family, backlog=1024)
        except OSError as error:
            raise InputError(
                f"cannot listen on {self._host}, port {self._port}: {error.strerror or error}; "
                "choose another port, or 0 for a free one"
            ) from None
        close_in_children(listener)  # a worker of a pool lives on, and would keep the port
        self._address = self._host, listener.getsockname()[1]
        listens, self._error = threading.Event(), None
        self._thread = threading.Thread(
            target=self._serve, args=(listener, listens), name="scope-torch-serve", daemon=True
        )
        self._thread.start()
        listens.wait(_STARTING_S)
        if self._error is not None:
            self._thread = self._address = None
            raise InputError(f"the endpoint did not start: {self._error}") from self._error

    def stop(self) -> None:
        """Stops to listen, and waits for requests in flight, up to `timeout_s` each."""
        self._stop(self._timeout_s + _CLOSING_S)
        self._thread = self._server = None

    def _stop(self, wait_s: float) -> None:
        self._address = None
        if self._server is not None:
            self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(wait_s)

    @contextlib.contextmanager
    def shared(self) -> Generator[None, None, None]:
        """It listens for one of several that use it: the first starts it, the last stops it.

        One that listens already is left to whoever has started it. An interrupt is not kept
        waiting: it comes when all calls have ended, or when the user waits for none.
        """
        with self._sharing:
            if not self.is_started:
                self.start()
                self._is_shared = True
            self._num_sharing += 1
        stop = self.stop
        try:
            yield
        except KeyboardInterrupt:
            stop = partial(self._stop, _INTERRUPTED_S)
            raise
        finally:
            with self._sharing:
                self._num_sharing -= 1
                if self._is_shared and not self._num_sharing:
                    self._is_shared = False
                    stop()

    @contextlib.contextmanager
    def query(
        self, assignment: Mapping[str, str], name: str | None = None
    ) -> Generator[QueryInFlight, None, None]:
        """Registers one run of the application; a context manager.

        At its end it waits for requests in flight, up to `timeout_s`, because they are paid for.
        Later ones are refused. In a coroutine this wait stops the event loop: give each query a
        thread and a loop of its own, if others must not time out meanwhile.

        Args:
            assignment: Module -> LLM, or its name with factors, such as "gpt-5.2 effort=low".
            name: Name for messages.

        Raises:
            InputError: If an LLM has no price, or a factor a wrong value, or the endpoint is not
                started.
        """
        query = self._queries.add(self.url, self._checked(assignment), name, self.prices)
        token = IN_FLIGHT.set(query)
        try:
            yield query
        finally:
            query.end(self._timeout_s + _CLOSING_S)
            self._queries.remove(query)
            with contextlib.suppress(ValueError):  # an async fixture may end it in another context
                IN_FLIGHT.reset(token)

    def at_prices(self, prices: PriceList) -> Endpoint:
        """This endpoint as it runs, for queries that are booked at other prices."""
        other = copy.copy(self)
        other.prices = prices
        return other

    def fault_of(self, query: QueryInFlight) -> str | None:
        """Why a run that has ended is no observation, and the mend; None if it is one.

        A run that answered without a request is none: a cache answered in the place of the LLMs, or
        its requests are booked on another query. Neither is a run whose requests cannot be told
        from those of others. It may wait for the first request of the queries in flight.

        Args:
            query: From `query`, which has ended; `is_answered` says whether the app has returned.
        """
        return self._queries.fault_of(query)

    def _chain(
        self,
        chosen: Mapping[str, str] | None,
        fallbacks: Sequence[Mapping[str, str]],
        cool_down_s: float,
    ) -> Chain | None:
        if not (isinstance(cool_down_s, int | float) and 0 <= cool_down_s < math.inf):
            raise InputError(f"cool_down_s={cool_down_s!r} must be a number of seconds, at least 0")
        if chosen is None and fallbacks:
            raise InputError("fallbacks stand behind a choice; give chosen={module: LLM, ...} too")
        if chosen is None:
            return None
        entries = [self._checked(one) for one in (chosen, *fallbacks)]
        if any(one.keys() != chosen.keys() for one in entries):
            raise InputError(f"every one of the fallbacks needs an LLM for each of {[*chosen]}")
        for module, choice in chosen.items():
            if others := [
                one for one in entries if own_factors(one[module]) != own_factors(choice)
            ]:
                raise InputError(
                    f"the fallback {others[0][module]!r} of {module} has not the factors of "
                    f"{choice!r}, which only the application can change; leave it out"
                )
        return Chain(entries, cool_down_s)

    def _checked(self, assignment: Mapping[str, str]) -> dict[str, str]:
        """The assignment, if the price of each LLM is known, and its factors can be."""
        if not assignment:
            raise InputError("no module has an LLM; give {module: LLM, ...}")
        self.prices.check(list(dict.fromkeys(assignment.values())))
        for choice in assignment.values():
            check_factors(choice, self.prices.listed(choice))
        return dict(assignment)

    def _serve(self, listener: socket.socket, listens: threading.Event) -> None:
        try:
            asyncio.run(self._main(listener, listens))
        except Exception as error:  # as for a proxy in the environment that is no URL
            self._error = error
            if listens.is_set():
                logger.exception("the endpoint ended with an error")
        finally:
            listener.close()
            listens.set()

    async def _main(self, listener: socket.socket, listens: threading.Event) -> None:
        self._upstream.open()
        self._server = server_of(self._app.asgi(), math.ceil(self._timeout_s), listens)
        try:
            await self._server.serve(sockets=[listener])
        finally:
            await self._upstream.close()


def _checked_token(token: str | None, allowed_hosts: Sequence[str]) -> str | None:
    """The token; a random one if other hosts are allowed and there is none.

    Raises:
        InputError: If a value cannot be used.
    """
    names = [allowed_hosts] if isinstance(allowed_hosts, str) else allowed_hosts
    for name in names:
        if isinstance(allowed_hosts, str) or not name or not _HOST.fullmatch(name):
            raise InputError(
                f"allowed_hosts={allowed_hosts!r:.200} must be a list of names without port, such "
                "as ['host.docker.internal']"
            )
    if token is None:
        return secrets.token_urlsafe(24) if names else None
    if not (token.isascii() and token.isprintable()) or " " in token or not token:
        raise InputError("token must be text of letters, digits and signs, without spaces")
    return token


def _check_packages() -> None:
    try:
        for name in ("httpx", "starlette", "uvicorn"):
            import_module(name)
    except ImportError as error:
        raise InputError(
            f'the endpoint needs the package {error.name}: pip install "scope-torch[serve]"'
        ) from None
