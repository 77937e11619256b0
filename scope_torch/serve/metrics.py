"""The ledger and the chain as Prometheus reads them, text format 0.0.4, for `GET /metrics`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from scope_torch.serve.ledger import Ledger

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_OF_BILLS = {
    "calls": "Requests that were forwarded, failed ones included.",
    "failed": "Requests that ended with an error or a cut reply.",
    "prompt_tokens": "Billed prompt tokens, cached ones included.",
    "cached_tokens": "Billed prompt tokens that came from the provider's cache.",
    "completion_tokens": "Billed completion tokens.",
    "cost_usd": "Cost in USD.",
    "estimated_usd": "The part of the cost that is an upper estimate.",
}
_ESCAPED = {"\\": r"\\", '"': r"\"", "\n": r"\n"}


def metrics_text(ledger: Ledger, active: int) -> str:
    """Counters by module and LLM, and which configuration of the chain answers.

    Args:
        ledger: The bills of the endpoint.
        active: Position of the configuration in the chain; 0 is the choice.

    Examples:
        >>> ledger = Ledger()
        >>> ledger.fall_back("planner", "nano", "503")
        >>> print(metrics_text(ledger, 1).splitlines()[-4])
        scope_torch_fallbacks_total{module="planner",llm="nano",reason="503"} 1
    """
    bills = ledger.by_llm()
    lines: list[str] = []
    for field, about in _OF_BILLS.items():
        values = (({"module": m, "llm": n}, getattr(b, field)) for (m, n), b in bills.items())
        lines += _metric(f"{field}_total", "counter", about, values)
    counts = ledger.fallbacks().items()
    moves = (({"module": m, "llm": llm, "reason": why}, n) for (m, llm, why), n in counts)
    lines += _metric("fallbacks_total", "counter", "Requests that went on to another LLM.", moves)
    about = "Position of the configuration that answers; 0 is the choice."
    lines += _metric("active_entry", "gauge", about, [({}, active)])
    return "\n".join(lines) + "\n"


def _metric(
    name: str, kind: str, about: str, values: Iterable[tuple[Mapping[str, str], float]]
) -> list[str]:
    name = f"scope_torch_{name}"
    head = [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]
    return [*head, *(f"{name}{_labels(labels)} {value!r}" for labels, value in values)]


def _labels(labels: Mapping[str, str]) -> str:
    told = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())
    return f"{{{told}}}" if told else ""


def _escaped(value: str) -> str:
    """A value of a label; readers stumble over other signs that cannot be printed."""
    return "".join(_ESCAPED.get(c) or (c if c.isprintable() else "\ufffd") for c in value)
