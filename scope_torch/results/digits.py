"""Numbers as people read them: a few digits, no exponents, and bounds rounded to the safe side."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal
from typing import Literal

Side = Literal["nearest", "down", "up"]
_ROUNDINGS = {"nearest": ROUND_HALF_EVEN, "down": ROUND_FLOOR, "up": ROUND_CEILING}
_MOST_DECIMALS = 9
# Of any float. The application may have set another precision, or traps, for its own numbers.
_EXACT = Context(prec=400, traps=[])


def plain(value: float, digits: int = 3, side: Side = "nearest") -> str:
    """A number with so many significant digits, without an exponent and without trailing zeros.

    Args:
        value: Any number.
        digits: Significant digits; digits before the point are never dropped.
        side: `down` for a lower bound, `up` for an upper one: neither says more than is known.

    Examples:
        >>> plain(0.043512), plain(1234.6), plain(2.0)
        ('0.0435', '1235', '2')
        >>> plain(0.94777, 3, "down"), plain(0.94777, 2, "up")
        ('0.947', '0.95')
    """
    if not math.isfinite(value):
        return str(value)
    exact = Decimal(repr(float(value)))
    if not exact:
        return "0"
    decimals = min(_MOST_DECIMALS, max(0, digits - 1 - exact.adjusted()))
    text = f"{_rounded(exact, decimals, side):f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def quality(value: float, side: Side = "nearest") -> str:
    """A quality in [0, 1] with two decimals, or with up to four where fewer would say 0 or 1.

    Examples:
        >>> quality(0.5), quality(1.0), quality(0.9967), quality(0.9999998)
        ('0.50', '1.00', '0.997', 'over 0.9999')
        >>> quality(0.9477, "down")
        '0.94'
    """
    for decimals in range(2, 5):
        rounded = _rounded(Decimal(repr(float(value))), decimals, side)
        if value in (0.0, 1.0) or rounded not in (0, 1) or side != "nearest":
            return f"{rounded:f}"
    return "over 0.9999" if value > 0.5 else "under 0.0001"


def threshold(s_0: float) -> str:
    """The least quality allowed, wherever it is shown: up to four digits, never less than it is.

    Examples:
        >>> threshold(0.95 * 0.95), threshold(0.95 * 0.9), threshold(0.92163)
        ('0.9025', '0.855', '0.9217')
    """
    return plain(round(s_0, 9), 4, "up")  # products of short numbers are not exact


def percent(fraction: float) -> str:
    """A fraction as a percentage; never "100%" below 1, and never "0%" above 0.

    Examples:
        >>> percent(0.957), percent(0.9996), percent(1.0), percent(0.0004), percent(0.9999999)
        ('96%', '99.96%', '100%', '0.04%', 'over 99.99%')
    """
    exact = Decimal(repr(float(fraction))).scaleb(2, _EXACT)
    for decimals in range(3):
        rounded = _rounded(exact, decimals)
        if rounded == exact or abs(rounded) not in (0, 100):
            return f"{rounded:f}%"
    sign = "-" if exact < 0 else ""
    return f"over {sign}99.99%" if abs(exact) > 50 else f"under {sign}0.01%"


def share(fraction: float, side: Side = "nearest", digits: int = 3) -> str:
    """A share of runs as a percentage with so many digits; never "100%" below 1.

    Examples:
        >>> share(0.97), share(0.9466), share(0.99971), share(0.9466, side="up"), share(1.0)
        ('97%', '94.7%', '99.9%', '94.7%', '100%')
        >>> share(0.997, digits=2), share(0.1234, "up", 2)
        ('99%', '13%')
    """
    percentage = round(100 * fraction, 9)  # 100 times a short number is none
    if percentage < 100 and plain(percentage, digits, side) == "100" and side == "nearest":
        side = "down"
    return f"{plain(percentage, digits, side)}%"


def level(delta: float) -> str:
    """The confidence of what is wrong with probability `delta`: four digits, never more than it is.

    Examples:
        >>> level(0.05), level(0.07), level(1e-5), level(0.0123456)
        ('95%', '93%', '99.99%', '98.76%')
    """
    percentage = min(round(100 * (1 - delta), 9), 99.999 if delta > 0 else 100.0)
    return f"{plain(percentage, 4, side='down')}%"


def usd(value: float) -> str:
    """An amount of USD with two decimals, and with two significant digits below 0.1.

    Examples:
        >>> usd(0.9), usd(12.3456), usd(0.004512), usd(1234.5), usd(0.0)
        ('0.90', '12.35', '0.0045', '1234.50', '0')
    """
    if value == 0:
        return "0"
    return f"{value:.2f}" if abs(value) >= 0.1 else plain(value, 2)


def per_thousand(usd_per_query: float, side: Side = "nearest") -> str:
    """USD for 1,000 queries.

    Examples:
        >>> per_thousand(0.0000435), per_thousand(0.01)
        ('0.0435', '10')
    """
    return plain(1000 * usd_per_query, side=side)


def _rounded(exact: Decimal, decimals: int, side: Side = "nearest") -> Decimal:
    return exact.quantize(Decimal((0, (1,), -decimals)), _ROUNDINGS[side], _EXACT)
