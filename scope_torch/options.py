"""Options that several searches share: type, meaning and default, said once.

`make_scope`, `make_scope_joint` and `make_scope_front` take them as keywords, and the command line
has those that can be typed as keys of the method.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, get_args, get_origin, get_type_hints

from scope_torch.errors import InputError

if TYPE_CHECKING:  # these import torch: seconds
    import torch
    from gpytorch.kernels import Kernel

    from scope_torch.bounds.repeats import Repeats
    from scope_torch.observation import Observation
    from scope_torch.search.calibrate import Base, PoolKind
    from scope_torch.search.known import Known
    from scope_torch.search.rules import Rule


class SharedOptions(TypedDict, total=False):
    """Options of all searches of this package."""

    seed: int
    """Decides the query order, the random pool and all ties."""
    base: Base
    """theta_base, a cheap LLM that is a candidate of every module; or [one for each module], or
    {module: one}."""
    initial_pool: PoolKind
    """Theta_init of Calibrate: base (neighbours of theta_base) | random | none (no Calibrate)."""
    batch_size: int | None
    """Queries of a candidate that are in flight; null: all."""
    in_flight: int
    """Calls at a time that the search is made for. Above 1 several candidates are open at once, see
    `InFlight` and `FrontInFlight`; 1: one candidate at a time."""
    kernel: Kernel | None
    """k, a GPyTorch kernel on configurations; None for Matern 5/2."""


class SearchOptions(SharedOptions, total=False):
    """Options of `make_scope` and `make_scope_joint`."""

    prune: bool
    """Whether a candidate is dropped early (line alg:scope-main:break); SCOPE-Coarse: no."""
    gap_tolerance: float | None
    """Stop once u_out is known to be within this of the optimum, relative to u_out; null: to the
    letter of alg:scope-main, the whole budget is spent."""
    space_search: str
    """Minima over Theta: grid (enumerates up to 2e8 configurations, or a list of those that may be
    chosen) | branch_and_bound (the same minima in more) | auto (what fits)."""
    surrogate: str
    """Gaussian processes: tensor (on the device) | incremental (CPU) | auto (by the device)."""
    certificate_flips: float | str | Repeats | None
    """Sequence: 0 or null if the same call always gets the same answer. Else candidates are
    certified by fresh answers (`ByFreshAnswers`); the number, how often a call is answered
    otherwise than usual, only says what is worth trying. auto: by `reference_repeats`."""
    reference_repeats: Sequence[int] | None
    """With auto: [queries that theta_0 answered otherwise the second time, queries asked twice]."""
    query_pool: int | None
    """Population, with more queries than a search needs: Calibrate looks at so many, a candidate
    draws from all and stops once it is theta_out; null: all queries everywhere."""
    device: torch.device | str | None
    """Where the algebra over Theta runs; None for `auto`, see `pick_device`."""
    known: Known | Sequence[Observation]
    """Observations of earlier searches in the codes of this problem, see `Known`."""
    rules: Sequence[Rule]
    """Rules of your own, see `Rule`."""


DEFAULTS: SearchOptions = {
    "seed": 0,
    "base": None,
    "initial_pool": "base",
    "batch_size": 1,
    "kernel": None,
    "in_flight": 1,
    "prune": True,
    "gap_tolerance": 0.0,
    "space_search": "auto",
    "surrogate": "auto",
    "certificate_flips": 0.0,
    "reference_repeats": None,
    "query_pool": None,
    "device": None,
    "known": (),
    "rules": (),
}


def with_defaults(
    options: Mapping[str, Any], maker: str, kind: type[SharedOptions] = SearchOptions
) -> SearchOptions:
    """The options of a call of `maker`, completed.

    Raises:
        TypeError: If there is no such option.
    """
    for name in options:
        if name not in kind.__annotations__:
            raise TypeError(f"{maker}() got an unexpected keyword argument {name!r}")
    return {**DEFAULTS, **options}  # pyright: ignore[reportReturnType]


def arguments_of(function: Callable[..., Any]) -> set[str]:
    """The names of the arguments of a function, with those of `**options: Unpack[...]`."""
    parameters = inspect.signature(function).parameters
    names = set(parameters)
    for name, parameter in parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            hint = get_type_hints(function).get(name)
            if get_origin(hint) is Unpack:
                names |= get_args(hint)[0].__annotations__.keys()
    return names


def one_of(name: str, value: str, known: tuple[str, ...]) -> str:
    """Returns `value`; raises InputError if it is not `known`."""
    if value not in known:
        raise InputError(f"{name} {value!r} must be {' or '.join(known)}")
    return value


def check_names(bounds: Mapping[str, Any], known: tuple[str, ...]) -> None:
    """Raises InputError if a setting of bounds is not `known`."""
    unknown = sorted(set(bounds) - set(known))
    if unknown:
        raise InputError(f"unknown bounds setting {unknown[0]!r}; use one of {[*known]}")


def chosen(bounds: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """Those of the settings that are given."""
    return {name: bounds[name] for name in names if name in bounds}
