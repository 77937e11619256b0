"""Means and standard deviations of a fitted Gaussian process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from scope_torch.bounds.assumptions import assumptions
from scope_torch.bounds.base import WIDENING, Beta, positive
from scope_torch.errors import InputError


class CredibleBounds:
    """Means and some standard deviations of a fitted Gaussian process, for `JointSurrogate`.

    Args:
        b: Standard deviations, for what to evaluate and when to stop evaluating it.
        widenings: How often b grows by half because nothing can improve on theta_out any more while
            budget remains. A fitted model is wrong now and then by more than it says.
        b_certify: Standard deviations between the mean of g and a certificate. A candidate is
            chosen because it looks good, and looked at after every observation, so the two
            standard deviations that describe one look at one configuration are not enough.

    Raises:
        InputError: If a number is not positive, or `widenings` below 0.
    """

    mode = "credible"
    gain = None

    def __init__(self, b: float = 3.0, b_certify: float = 4.0, widenings: int = 1) -> None:
        if not (widenings >= 0 and widenings % 1 == 0):
            raise InputError(f"widenings={widenings} must be a whole number >= 0")
        self._b, self._b_certify = positive("b", b), positive("b_certify", b_certify)
        self._widenings, self._widened = widenings, 0

    def fit(self, surrogate: Any, least_slope: Callable[[], float]) -> None:
        """Nothing is fitted here: the joint surrogate knows its own scale."""

    def widen(self) -> bool:
        """See `ConfidenceBounds.widen`; `widenings` times."""
        if self._widened == self._widenings:
            return False
        self._widened += 1
        return True

    def beta(self, j_max: int, information: Sequence[float] = ()) -> Beta:  # noqa: ARG002
        """See `ConfidenceBounds.beta`."""
        b = self._b * WIDENING**self._widened
        return Beta(b, b, self._b_certify)

    def settings(self) -> dict[str, Any]:
        """See `ConfidenceBounds`."""
        return {
            "mode": self.mode,
            "b": self._b,
            "b_certify": self._b_certify,
            "widenings": self._widenings,
        }

    def report(self) -> dict[str, Any]:
        """See `ConfidenceBounds`; b and b_certify are in standard deviations."""
        half_widths = {"b_c": None, "b_g": None}
        told = {"delta": None, "assumptions": assumptions(self.settings())}
        return {**self.settings(), "widened": self._widened, **half_widths, **told}
