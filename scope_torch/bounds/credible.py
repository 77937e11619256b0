"""Means and standard deviations of a fitted Gaussian process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from scope_torch.bounds.assumptions import MOST_WIDENINGS, WIDENING, assumptions
from scope_torch.bounds.base import Beta, positive
from scope_torch.errors import whole_number


class CredibleBounds:
    """Means and standard deviations of a fitted Gaussian process, for `JointSurrogate`.

    Args:
        b: Half-width in standard deviations. It decides which configuration is evaluated, and when
            its evaluation ends.
        widenings: How often b is multiplied by 1.5 when nothing can improve on theta_out although
            budget remains. A fitted model is wrong now and then by more than it says.
        b_certify: Standard deviations between the mean of g and U_g, with `ByBounds`. A candidate
            is chosen because it looks good, and is looked at after every observation. So it takes
            more than the two standard deviations of one look at one configuration.

    Raises:
        InputError: If a number is not positive, or `widenings` is not a whole number, 0 to 100.
    """

    mode = "credible"
    gain = None

    def __init__(self, b: float = 3.0, b_certify: float = 4.0, widenings: int = 1) -> None:
        self._b, self._b_certify = positive("b", b), positive("b_certify", b_certify)
        self._widenings = whole_number("widenings", widenings, 0, MOST_WIDENINGS)
        self._widened = 0

    def fit(self, surrogate: Any, least_slope: Callable[[], float]) -> None:  # noqa: ARG002
        """Takes back every widening: the joint surrogate, which knows its own scale, is new."""
        self._widened = 0

    def widen(self) -> bool:
        """Multiplies b by 1.5, at most `widenings` times."""
        if self._widened == self._widenings:
            return False
        self._widened += 1
        return True

    def beta(self, j_max: int, information: Sequence[float] = ()) -> Beta:  # noqa: ARG002
        """B in standard deviations; only `widen` changes it."""
        b = self._b * WIDENING**self._widened
        return Beta(b, b, self._b_certify)

    def settings(self) -> dict[str, Any]:
        """The arguments, JSON-serialisable."""
        return {
            "mode": self.mode,
            "b": self._b,
            "b_certify": self._b_certify,
            "widenings": self._widenings,
        }

    def report(self) -> dict[str, Any]:
        """B and b_certify in standard deviations, how often b was widened, and the assumptions."""
        return {
            **self.settings(),
            "widened": self._widened,
            "b_c": None,
            "b_g": None,
            "delta": None,
            "assumptions": assumptions(self.settings()),
        }
