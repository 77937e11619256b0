"""What the modules of an application were billed for their calls."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, replace

from scope_torch.llm.billing import Usage


@dataclass(frozen=True)
class ModuleBill:
    """The bill of one module.

    Args:
        calls: Requests that were forwarded, those that failed included.
        failed: Requests that ended with an error or a cut reply.
        prompt_tokens: Billed prompt tokens, `cached_tokens` included.
        completion_tokens: Billed completion tokens, hidden reasoning included.
        cached_tokens: Prompt tokens that were read from the provider's cache.
        cost_usd: Cost in USD.
        estimated_usd: The part of `cost_usd` that is an upper estimate, in USD.
    """

    calls: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    cost_usd: float = 0.0
    estimated_usd: float = 0.0


class Ledger:
    """The bills of all modules; any thread may book and read.

    Examples:
        >>> ledger = Ledger()
        >>> ledger.book("planner", Usage(90, 10), 0.25)
        >>> ledger.book("planner", None, 0.0, failed=True)
        >>> ledger.cost_usd, ledger.by_module()["planner"].calls
        (0.25, 2)
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bills: dict[str, ModuleBill] = {}

    @property
    def cost_usd(self) -> float:
        """Cost of all modules in USD."""
        return math.fsum(bill.cost_usd for bill in self.by_module().values())

    @property
    def estimated_usd(self) -> float:
        """The part of `cost_usd` that is an upper estimate, in USD."""
        return math.fsum(bill.estimated_usd for bill in self.by_module().values())

    def by_module(self) -> dict[str, ModuleBill]:
        """The bills so far; a module without calls has none."""
        with self._lock:
            return dict(self._bills)

    def book(self, module: str, usage: Usage | None, usd: float, *, failed: bool = False) -> None:
        """Adds one call.

        Args:
            module: Who asked.
            usage: Billed tokens; None if nothing was billed.
            usd: Their cost in USD.
            failed: Whether the application got an error or a cut reply.
        """
        tokens = usage or Usage(0, 0)
        with self._lock:
            bill = self._bills.get(module, ModuleBill())
            self._bills[module] = replace(
                bill,
                calls=bill.calls + 1,
                failed=bill.failed + failed,
                prompt_tokens=bill.prompt_tokens + tokens.prompt_tokens,
                completion_tokens=bill.completion_tokens + tokens.completion_tokens,
                cached_tokens=bill.cached_tokens + tokens.cached_tokens,
                cost_usd=bill.cost_usd + usd,
                estimated_usd=bill.estimated_usd + (usd if tokens.estimated else 0.0),
            )
