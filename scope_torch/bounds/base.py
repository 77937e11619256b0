"""The interface of confidence bounds (eq:lcb-ours).

| symbol | here | unit |
| --- | --- | --- |
| L_zeta, U_zeta = mu_bar_zeta -+ beta_zeta sigma_bar | | USD (c), quality (g) |
| beta_c, beta_g | `Beta` | USD, quality |
| b_zeta = beta_zeta / sqrt(Q) | half-width where nothing is known | USD, quality |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from gpytorch.kernels import Kernel

from scope_torch.bounds.information_gain import InformationGain, RealisedGain
from scope_torch.errors import InputError
from scope_torch.model.kernels import describe_kernel


class Beta(NamedTuple):
    """beta_c in USD and beta_g in units of quality; L, U = mu_bar -+ beta sigma_bar.

    `certify` is the coefficient of U_g; None, as in the paper: beta_g. `units`: with several
    constraints the k-th has beta_g units[k]; empty if all have beta_g.
    """

    c: float
    g: float
    certify: float | None = None
    units: tuple[float, ...] = ()


class ConfidenceBounds(Protocol):
    """beta as a function of the observations.

    b_zeta = beta_zeta / sqrt(Q) is the half-width at a configuration about which nothing is known,
    because the root mean square over queries of sigma_hat is 1 there.

    Attributes:
        mode: `tuned`, `theory` or `credible`; or another name for your own.
    """

    mode: str

    @property
    def gain(self) -> InformationGain | RealisedGain | None:
        """The information gain that beta uses, for one kernel and lambda; None if it uses none."""
        ...

    def fit(self, surrogate: Any, least_slope: Callable[[], float]) -> None:
        """Called after Calibrate, before the first selection, and after a round of verification.

        Args:
            surrogate: The surrogate after Calibrate; tuned bounds need a `QuerySurrogate`.
            least_slope: The least beta_g for which some theta has L_g <= -1; costly.
        """
        ...

    def beta(self, j_max: int, information: Sequence[float] = ()) -> Beta:
        """beta_{zeta,t}.

        Args:
            j_max: How often the query observed most often has been observed.
            information: 1/2 log det(I + K / lam) of the observations, in nats: of every query, or
                of the one process of the joint surrogate.
        """
        ...

    def widen(self) -> bool:
        """Called when no configuration can improve on theta_out although budget remains.

        Returns:
            Whether beta_g has grown; it never falls, but by `fit`.
        """
        ...

    def settings(self) -> dict[str, Any]:
        """The arguments, JSON-serialisable; `assumptions` explains them."""
        ...

    def report(self) -> dict[str, Any]:
        """Mode, half-widths and the assumptions under which "certified" holds."""
        ...


def check_made_for(bounds: ConfidenceBounds, kernel: Kernel, lam: float, num_modules: int) -> None:
    """Raises InputError if the bounds use the information gain of another kernel or lambda."""
    gain = bounds.gain
    if gain is None:
        return
    same = describe_kernel(gain.kernel, num_modules) == describe_kernel(kernel, num_modules)
    if gain.lam != lam or not same:
        raise InputError(
            f"lam={lam}, {type(kernel).__name__} are not what the bounds were made for: "
            f"lam={gain.lam}, {type(gain.kernel).__name__}; give both the same"
        )


def positive(name: str, value: float | str) -> float:
    """A positive number, as the command line gives it.

    Raises:
        InputError: If it is not one, or not positive.
    """
    return float(number_or_rule(name, value, ()))


def number_or_rule(name: str, value: float | str, rules: tuple[str, ...]) -> float | str:
    """A positive number, or one of `rules`, as the command line gives it.

    Raises:
        InputError: If it is neither.
    """
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        if value in rules:
            return value
        known = f" or one of {', '.join(rules)}" if rules else ""
        raise InputError(f"{name}={value!r} must be a positive number{known}") from None
    if not (math.isfinite(number) and number > 0):
        raise InputError(f"{name}={value} must be a positive number")
    return number
