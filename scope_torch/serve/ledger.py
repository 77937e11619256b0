"""What the modules of an application were billed for their calls, and which LLMs answered."""

from __future__ import annotations

import math
import threading
from collections import Counter
from dataclasses import astuple, dataclass

from scope_torch.llm.billing import Usage


@dataclass(frozen=True)
class ModuleBill:
    """The bill of one module, or of one LLM in it.

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

    def __add__(self, other: ModuleBill) -> ModuleBill:
        """Both together."""
        return ModuleBill(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


class Ledger:
    """The bills of all modules; any thread may book and read.

    Examples:
        >>> ledger = Ledger()
        >>> ledger.book("planner", Usage(90, 10), 0.25, llm="nano")
        >>> ledger.book("planner", None, 0.0, llm="mini", failed=True)
        >>> ledger.cost_usd, ledger.by_module()["planner"].calls
        (0.25, 2)
        >>> ledger.by_llm()["planner", "mini"].failed
        1
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bills: dict[tuple[str, str], ModuleBill] = {}
        self._fallbacks = Counter[tuple[str, str, str]]()

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
        bills: dict[str, ModuleBill] = {}
        for (module, _), bill in self.by_llm().items():
            bills[module] = bills.get(module, ModuleBill()) + bill
        return bills

    def by_llm(self) -> dict[tuple[str, str], ModuleBill]:
        """The bills so far by module and the LLM that was asked."""
        with self._lock:
            return dict(self._bills)

    def fallbacks(self) -> Counter[tuple[str, str, str]]:
        """How often another LLM was asked instead, by module, the LLM that failed, and why."""
        with self._lock:
            return Counter(self._fallbacks)

    def fall_back(self, module: str, llm: str, reason: str) -> None:
        """Counts that another LLM is asked instead of this one; `reason` is a word."""
        with self._lock:
            self._fallbacks[module, llm, reason] += 1

    def book(
        self, module: str, usage: Usage | None, usd: float, *, llm: str = "", failed: bool = False
    ) -> None:
        """Adds one call.

        Args:
            module: Who asked.
            usage: Billed tokens; None if nothing was billed.
            usd: Their cost in USD.
            llm: Who was asked.
            failed: Whether it ended with an error or a cut reply.
        """
        tokens = usage or Usage(0, 0)
        of_tokens = tokens.prompt_tokens, tokens.completion_tokens, tokens.cached_tokens
        bill = ModuleBill(1, int(failed), *of_tokens, usd, usd if tokens.estimated else 0.0)
        with self._lock:
            self._bills[module, llm] = self._bills.get((module, llm), ModuleBill()) + bill
