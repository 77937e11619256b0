"""Serves a choice for good: `scope-torch serve --models models.json --base-url URL`."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from scope_torch.cli.saying import say
from scope_torch.errors import InputError
from scope_torch.llm.keys import key_of
from scope_torch.llm.price_list import PriceList
from scope_torch.results.saving import load_chain
from scope_torch.serve.endpoint import Endpoint
from scope_torch.serve.ledger import Ledger


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point; serves until Ctrl-C or SIGTERM; exits with 2 if the user can mend an error."""
    asked = _parser().parse_args(argv)
    try:
        chosen, *fallbacks = load_chain(asked.models)
        endpoint = Endpoint(
            asked.base_url,
            api_key_env=asked.api_key_env,
            prices=PriceList(asked.prices),
            host=asked.host,
            port=asked.port,
            timeout_s=asked.timeout_s,
            chosen=chosen,
            fallbacks=fallbacks,
            allowed_hosts=asked.allowed_host,
            token=key_of(asked.token_env, "the endpoint's own applications"),
            asks_for_usage=not asked.no_stream_usage,
        )
        signal.signal(signal.SIGTERM, _interrupt)
        serve(endpoint)
    except (InputError, OSError) as error:
        print(f"serve: {error}", file=sys.stderr)
        sys.exit(2)


def serve(endpoint: Endpoint) -> None:
    """Serves until an interrupt, then waits for requests in flight and prints the bills.

    A second interrupt does not wait.
    """
    assert endpoint.chain is not None
    chosen, *fallbacks = endpoint.chain.entries
    try:
        with endpoint:
            say(f"{endpoint.url}/v1 answers until Ctrl-C for these models:")
            if endpoint.token_is_random:
                say(f"  with the key {endpoint.token}")
            for module, llm in chosen.items():
                say(f"  scope/{module} -> {llm}")
            for one in fallbacks:
                told = ", ".join(f"{module}={llm}" for module, llm in one.items())
                say(f"  where an LLM fails: {told}")
            threading.Event().wait()
    except KeyboardInterrupt:
        pass
    finally:
        say(totals(endpoint.ledger, chosen))


def totals(ledger: Ledger, chosen: Mapping[str, str]) -> str:
    """The bills of all modules, a line for each, and one for each LLM that was not chosen.

    Examples:
        >>> print(totals(Ledger(), {"planner": "nano"}))
        0 calls, 0 USD
    """
    bills, lines = ledger.by_module(), list[str]()
    for module, bill in bills.items():
        lines.append(
            f"  {module}: {bill.calls} calls ({bill.failed} failed), {bill.prompt_tokens} + "
            f"{bill.completion_tokens} tokens, {bill.cost_usd:.6g} USD"
        )
        for (name, llm), one in ledger.by_llm().items():
            if name == module and llm != chosen[module]:
                why = _why(ledger, module, llm) or f"{chosen[module]}, another module fell back"
                lines.append(f"    {one.calls} of {bill.calls} by {llm} (was {why})")
    calls = sum(bill.calls for bill in bills.values())
    total = f"{calls} calls, {ledger.cost_usd:.6g} USD"
    if ledger.estimated_usd:
        total += f", of which {ledger.estimated_usd:.6g} USD are upper estimates"
    return "\n".join([total, *lines])


def _why(ledger: Ledger, module: str, by: str) -> str:
    """Which LLMs of a module failed, so that another one was asked, and why."""
    found: dict[str, list[str]] = {}
    for name, llm, reason in ledger.fallbacks():
        if name == module and llm != by:
            found.setdefault(llm, []).append(reason)
    return "; ".join(f"{llm}: {', '.join(reasons)}" for llm, reasons in found.items())


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "scope-torch serve",
        description="Answers for the modules of an application, by the LLMs that were chosen.",
        epilog="example: scope-torch serve --models models.json --base-url https://api.openai.com/v1",
    )
    add = parser.add_argument
    add(
        "--models",
        type=Path,
        required=True,
        help="file of result.save(): models.json, models.yaml or .env",
    )
    add("--base-url", required=True, help="the upstream, such as https://api.openai.com/v1")
    add(
        "--api-key-env",
        help="environment variable with the upstream's key (that of a well-known host, else none)",
    )
    add("--port", type=int, default=8700, help="8700; 0 takes a free one")
    add("--host", default="127.0.0.1", help="127.0.0.1; another one opens it to other machines")
    add(
        "--allowed-host",
        action="append",
        default=[],
        help="another name of this machine in base URLs, such as host.docker.internal; repeatable",
    )
    add("--token-env", help="environment variable with the token that applications must send")
    add("--timeout-s", type=float, default=600.0, help="600: longest time of a request, in s")
    add("--no-stream-usage", action="store_true", help="do not ask streams for their usage")
    add("--prices", type=Path, help="TOML file with prices of your own")
    return parser


if __name__ == "__main__":
    main()
