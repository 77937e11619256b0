"""The configuration space Theta: one LLM for each module."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from scope_torch.errors import InputError

MAX_ENUMERATED = 200_000_000  # configurations; where there are more, nothing has their number
GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1

# A forked child has no threads of its parent, but OpenMP waits for them: one thread waits for none.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))


@dataclass(frozen=True)
class ConfigSpace:
    """Theta, the product over modules of [M_i]; the paper's M^N is the case of equal M_i.

    A configuration is a vector of LLM indices, its `codes`. Its flat index reads the codes as the
    digits of a number with mixed radix, module 0 first. So a tensor over Theta that is reshaped to
    `sizes` can be indexed by codes.

    Args:
        sizes: M_i, the number of candidate LLMs of each module.

    Raises:
        InputError: If there is no module, or a module has no candidate; if torch makes tensors
            elsewhere than on the CPU, unless told.

    Examples:
        >>> space = ConfigSpace((2, 3))
        >>> space.size
        6
        >>> space.index_of((1, 2)), space.theta_at(5)
        (5, (1, 2))
        >>> space.unrank(torch.tensor([0, 5]))
        tensor([[0, 0],
                [1, 2]])
        >>> space.neighbours((0, 0))
        [(0, 0), (1, 0), (0, 1), (0, 2)]
    """

    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.sizes or min(self.sizes) < 1:
            raise InputError(f"sizes={self.sizes}: need at least one module, each with an LLM")
        if (default := torch.empty(0).device).type != "cpu":  # where the bounds are computed
            raise InputError(
                f"torch.set_default_device is {default}: take that call away, and name the device "
                f"where your own tensors are made, as in `with torch.device({str(default)!r}):`"
            )

    @property
    def num_modules(self) -> int:
        """N, the number of modules."""
        return len(self.sizes)

    @property
    def size(self) -> int:
        """|Theta|, the number of configurations."""
        return math.prod(self.sizes)

    @property
    def strides(self) -> tuple[int, ...]:
        """Weight of each module's code in the flat index."""
        return tuple(math.prod(self.sizes[i + 1 :]) for i in range(self.num_modules))

    def rank(self, codes: Tensor) -> Tensor:
        """Flat indices of configurations.

        Args:
            codes: `... x num_modules` LLM indices (int64).

        Returns:
            `...` flat indices in [0, |Theta|) (int64).
        """
        return (codes * codes.new_tensor(self.strides)).sum(-1)

    def unrank(self, index: Tensor) -> Tensor:
        """Codes of flat indices; the inverse of `rank`.

        Args:
            index: `...` flat indices (int64).

        Returns:
            `... x num_modules` LLM indices (int64).
        """
        strides, sizes = index.new_tensor(self.strides), index.new_tensor(self.sizes)
        return (index.unsqueeze(-1) // strides) % sizes

    def index_of(self, theta: Sequence[int]) -> int:
        """The flat index of one configuration."""
        return sum(code * stride for code, stride in zip(theta, self.strides, strict=True))

    def theta_at(self, index: int) -> tuple[int, ...]:
        """The codes of one configuration; the inverse of `index_of`."""
        strides = zip(self.strides, self.sizes, strict=True)
        return tuple(index // stride % size for stride, size in strides)

    def check(self, theta: Sequence[int], name: str = "theta") -> tuple[int, ...]:
        """Returns `theta` as a tuple of ints.

        Args:
            theta: Codes.
            name: Name of this value in error messages.

        Raises:
            InputError: If it is not a configuration of this space.
        """
        try:
            codes = tuple(int(code) for code in theta)
            whole = all(code == given for code, given in zip(codes, theta, strict=True))
        except (TypeError, ValueError, OverflowError):  # a name, None, NaN
            codes, whole = (), False
        if (
            not whole
            or len(codes) != self.num_modules
            or any(not 0 <= code < size for code, size in zip(codes, self.sizes, strict=True))
        ):
            raise InputError(
                f"{name}={list(theta)} is not a configuration: give {self.num_modules} codes, each "
                f"a whole number, at least 0 and below the entry of {self.sizes}"
            )
        return codes

    def neighbours(self, base: Sequence[int]) -> list[tuple[int, ...]]:
        """Configurations that differ from `base` in at most one module (eq:theta-1-def).

        Returns:
            `base` first, then the others by module, and for each module by LLM.
        """
        base = self.check(base, "base")
        changed = [
            (*base[:i], llm, *base[i + 1 :])
            for i, size in enumerate(self.sizes)
            for llm in range(size)
            if llm != base[i]
        ]
        return [base, *changed]

    def sample(self, count: int, generator: torch.Generator) -> list[tuple[int, ...]]:
        """Different configurations drawn uniformly at random, in the order of the draws.

        Raises:
            InputError: If the space has fewer than `count` configurations.
        """
        if count > self.size:
            raise InputError(
                f"cannot draw {count} of {self.size} configurations; ask for at most {self.size}"
            )
        seen: dict[int, None] = {}
        while len(seen) < count:
            draws = torch.randint(self.size, (count,), generator=generator)
            seen.update(dict.fromkeys(draws.tolist()))
        codes = self.unrank(torch.tensor(list(seen)[:count]))
        return [tuple(row) for row in codes.tolist()]


def by_module(values: Mapping[str, Any], modules: Sequence[str], name: str) -> list[Any]:
    """The values of a dict in the order of the modules.

    Raises:
        InputError: If its keys are not the modules; the message calls it `name`.
    """
    if set(values) != set(modules):
        raise InputError(f"{name} has the keys {list(values)}; give each of {list(modules)} once")
    return [values[module] for module in modules]


def lists_of_llms(modules: Sequence[str], llms: Any) -> Sequence[Sequence[str]]:
    """The candidates of each module in the order of the modules; also of a dict by module.

    Raises:
        InputError: If a text stands in the place of a list.
    """
    if isinstance(modules, str):
        raise InputError(f"modules={modules!r} is one text; give a list of names")
    if isinstance(llms, Mapping):
        llms = tuple(by_module(llms, modules, "llms"))
    for names in (llms, *llms):
        if isinstance(names, str):
            raise InputError(f"llms has {names!r} in place of a list; give each module a list")
    return llms


def codes_of(
    llms: Sequence[str],
    modules: Sequence[str],
    candidates: Sequence[Sequence[str]],
    name: str,
) -> tuple[int, ...]:
    """Codes of a configuration that is given by the names of its LLMs.

    Args:
        llms: One name for each module.
        modules: Names of the modules.
        candidates: For each module, the names of its candidate LLMs.
        name: Name of `llms` in error messages.

    Raises:
        InputError: If a name is not a candidate of its module.
    """
    if isinstance(llms, str) or len(llms) != len(modules):
        shown = repr(llms) if isinstance(llms, str) else list(llms)
        commas = [llm for names in candidates for llm in names if "," in llm]
        hint = f'; a name with a comma needs quotes, such as "{commas[0]}"' if commas else ""
        raise InputError(f"{name}={shown}: name one LLM for each of {list(modules)}{hint}")
    for llm, module, names in zip(llms, modules, candidates, strict=True):
        if llm not in names:
            raise InputError(
                f"{name}: {llm!r} is not a candidate of module {module!r}; choose one of "
                f"{list(names)}"
            )
    return tuple(names.index(llm) for llm, names in zip(llms, candidates, strict=True))


def everywhere(
    llm: str, modules: Sequence[str], candidates: Sequence[Sequence[str]], name: str
) -> list[str]:
    """One LLM for all modules, as a list.

    Args:
        llm: Its name.
        modules: See `codes_of`.
        candidates: See `codes_of`.
        name: See `codes_of`.

    Raises:
        InputError: If it is not a candidate of all of them; the message shows how to name several.
    """
    for module, names in zip(modules, candidates, strict=True):
        if llm not in names and len(modules) > 1:
            some = (llm if llm in others else others[0] for others in candidates)
            example = ",".join(f'"{one}"' if "," in one else one for one in some)
            raise InputError(
                f"{name}: {llm!r} is not a candidate of module {module!r}, which has "
                f"{list(names)}; name one for each of {list(modules)}, such as {name}=[{example}]"
            )
    return [llm] * len(modules)


def check_seed(seed: int, name: str = "seed") -> int:
    """Returns `seed`, as an int.

    Args:
        seed: Seed of random numbers; also of numpy, or a whole float.
        name: Name of the setting in error messages.

    Raises:
        InputError: If it is not whole, or does not fit into 64 bits.
    """
    given: Any = seed
    if not isinstance(given, Real) or isinstance(given, bool) or given % 1 != 0:
        raise InputError(f"{name}={seed} must be a whole number")
    if not -(2**63) <= seed < 2**63:
        raise InputError(f"{name}={seed} must fit into 64 bits")
    return int(seed)


def splitmix64(x: Tensor) -> Tensor:
    """The SplitMix64 hash of 64-bit numbers.

    Args:
        x: `...` numbers (int64, two's complement).

    Returns:
        `...` hashes: int64 with the bits of the unsigned result.
    """

    def multiply_xorshift(z: Tensor, shift: int, factor: int) -> Tensor:
        z = z ^ ((z >> shift) & ((1 << (64 - shift)) - 1))
        return z * _signed(factor)

    z = x + _signed(GOLDEN)
    z = multiply_xorshift(z, 30, 0xBF58476D1CE4E5B9)
    z = multiply_xorshift(z, 27, 0x94D049BB133111EB)
    return z ^ ((z >> 31) & ((1 << 33) - 1))


def position_of(index: int, listed: Tensor | None) -> int | None:
    """The position of a flat index in a rising list; None if it is not there.

    Args:
        index: The flat index.
        listed: The list; None for all of Theta.
    """
    if listed is None:
        return index
    at = int(torch.searchsorted(listed, index))
    return at if at < len(listed) and int(listed[at]) == index else None


def tie_rank(index: Tensor, seed: int) -> Tensor:
    """A pseudo-random order of configurations; the same for all methods with the same seed.

    Args:
        index: `...` flat indices (int64).
        seed: The run's seed.

    Returns:
        `...` int64 keys; of tied configurations, the one with the smallest key is chosen.
    """
    hashed = splitmix64(index + _signed(seed * GOLDEN))
    return hashed ^ _signed(1 << 63)  # now the signed order is the unsigned order of the hash


def tie_width(best: float, scale: float) -> float:
    """Largest difference from the least value `best` that still counts as a tie.

    Args:
        best: The least value.
        scale: Magnitude of the values, in their unit; differences below 1e-9 of it are rounding.
    """
    return 1e-9 * max(abs(best), scale)


def first_tied(index: Tensor, seed: int) -> int:
    """Of the configurations with these flat indices, the first in the order of `tie_rank`.

    Under a Hamming kernel many configurations share one posterior. Were the first of them chosen,
    the order in which the LLMs are listed would decide the search.
    """
    if len(index) == 1:
        return int(index)
    return int(index[tie_rank(index, seed).argmin()])


def _signed(x: int) -> int:
    """The int64 with the lowest 64 bits of `x`."""
    x &= _MASK
    return x - (1 << 64) if x >= 1 << 63 else x
