"""Which configurations may be chosen, where not all of Theta may: a rule, or a list.

Examples:
    >>> llms = ("nano", "mini", "pro")
    >>> rule = Allowed(("plan", "judge"), (llms, llms), lambda llm: llm["plan"] != llm["judge"])
    >>> rule((0, 0)), rule((0, 1)), rule.count
    (False, True, 6)
    >>> rule.nearest((0, 0))  # differs from (0, 0) in as few modules as possible
    (0, 1)
"""

from __future__ import annotations

import copy
import hashlib
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from scope_torch.errors import InputError
from scope_torch.space import MAX_ENUMERATED, ConfigSpace, by_module, codes_of

Theta = tuple[int, ...]
RuleOfCodes = Callable[[Theta], bool]
Predicate = Callable[[dict[str, str]], bool]
Listed = Sequence[Mapping[str, str] | Sequence[str] | Sequence[int]]

_FAR = 3  # modules in which the nearest allowed configuration differs, where it must be looked for
_DRAWN = 1 << 12  # configurations that a digest, or a random draw, asks a rule about


def codes_of_list(
    listed: Listed, modules: Sequence[str], llms: Sequence[Sequence[str]]
) -> tuple[Theta, ...]:
    """The codes of a list of configurations, each once, by flat index.

    Args:
        listed: Each as codes, as names in the order of the modules, or as a dict by module.
        modules: Names of the modules.
        llms: For each module, the names of its candidate LLMs.

    Raises:
        InputError: If one is no configuration, or the list is empty.

    Examples:
        >>> codes_of_list([("b", "a"), {"x": "a", "y": "b"}, (1, 0)], ("x", "y"), (("a", "b"),) * 2)
        ((0, 1), (1, 0))
    """
    if isinstance(listed, str) or not len(listed):
        raise InputError(
            f"allowed={listed!r}: give a rule, or a list of configurations with at least theta_0"
        )
    space = ConfigSpace(tuple(map(len, llms)))
    codes: set[Theta] = set()
    for number, one in enumerate(listed):
        name = f"allowed[{number}]"
        theta: Any = by_module(one, modules, name) if isinstance(one, Mapping) else one
        if isinstance(theta, str) or any(isinstance(llm, str) for llm in theta):
            theta = codes_of(theta, modules, llms, name)
        codes.add(space.check(theta, name))
    return tuple(sorted(codes))


def checked_offered(
    offered: Mapping[Theta, Sequence[int]], space: ConfigSpace, num_queries: int, theta_ref: Theta
) -> dict[Theta, tuple[int, ...]]:
    """The queries of each configuration that cannot be observed on all of them; rising.

    Raises:
        InputError: If one has none, or another than 0 to `num_queries` - 1, or if theta_0 is one.
    """
    checked: dict[Theta, tuple[int, ...]] = {}
    for theta, queries in offered.items():
        own = tuple(sorted(set(map(int, queries))))
        if not own or own[0] < 0 or own[-1] >= num_queries:
            raise InputError(
                f"offered gives {theta} the queries {list(own[:3])}...; give some of 0 to "
                f"{num_queries - 1}, or do not allow it"
            )
        if len(own) < num_queries:
            checked[space.check(theta, "offered")] = own
    if theta_ref in checked:
        raise InputError(
            f"theta_0, {theta_ref}, can be observed on {len(checked[theta_ref])} of {num_queries} "
            "queries alone; every other configuration is compared with it: take a complete one"
        )
    return checked


class Allowed:
    """The configurations that may be chosen.

    A rule is asked about each configuration of Theta once, when a method first needs to know all
    of them: a million take about a second. Where Theta is too large to enumerate, it is asked
    about those alone that a search comes across.

    Args:
        modules: Names of the modules.
        llms: For each module, the names of its candidate LLMs.
        given: A rule, which is told {module: LLM}; codes, as from `codes_of_list`; None for all.
    """

    def __init__(
        self,
        modules: Sequence[str],
        llms: Sequence[Sequence[str]],
        given: Predicate | tuple[Theta, ...] | None,
    ) -> None:
        self.space = ConfigSpace(tuple(map(len, llms)))
        self._modules, self._llms = modules, llms
        self._rule = given if callable(given) else None
        self._listed = None if callable(given) or given is None else frozenset(given)
        self._without: frozenset[Theta] = frozenset()
        self._dropped: frozenset[tuple[int, int]] = frozenset()

    @property
    def is_listed(self) -> bool:
        """Whether it is a list, not a rule."""
        return self._listed is not None

    def __call__(self, theta: Sequence[int]) -> bool:
        """Whether a configuration may be chosen.

        Raises:
            InputError: If the rule raises, or returns something else than a bool.
        """
        if tuple(theta) in self._without or not self._dropped.isdisjoint(enumerate(theta)):
            return False
        if self._listed is not None:
            return tuple(theta) in self._listed
        return self._ask([names[code] for names, code in zip(self._llms, theta, strict=True)])

    def _ask(self, names: Sequence[str]) -> bool:
        if self._rule is None:
            return True
        llms = dict(zip(self._modules, names, strict=True))
        try:
            answer: Any = self._rule(dict(llms))
        except Exception as error:
            raise InputError(
                f"allowed raised {type(error).__name__} ({error}) for {llms}; it must return a "
                "bool for every configuration"
            ) from error
        if not isinstance(answer, bool | np.bool_):
            raise InputError(f"allowed returned {answer!r} for {llms}; return True or False")
        return bool(answer)

    @cached_property
    def index(self) -> Tensor | None:
        """Flat indices of all that may be chosen, rising (int64); None if they cannot be listed."""
        if self._listed is not None and self.space.size < 2**63:
            codes = torch.tensor(sorted(filter(self, self._listed)), dtype=torch.int64)
            return self.space.rank(codes.view(-1, self.space.num_modules))
        return None if self.mask is None else self.mask.nonzero().squeeze(-1)

    @cached_property
    def mask(self) -> Tensor | None:
        """`|Theta|` booleans by flat index; None if Theta is too large to enumerate."""
        if self.space.size > MAX_ENUMERATED:
            return None
        if self._listed is not None:
            assert self.index is not None
            mask = torch.zeros(self.space.size, dtype=torch.bool)
            mask[self.index] = True
            return mask
        if self._rule is None:
            return torch.ones(self.space.size, dtype=torch.bool)
        answers = map(self._ask, itertools.product(*self._llms))
        return torch.from_numpy(np.fromiter(answers, dtype=bool, count=self.space.size))

    def without(self, thetas: Collection[Theta]) -> Allowed:
        """Without some configurations."""
        made = copy.copy(self)
        made._without = self._without | set(thetas)
        gone = [self.space.index_of(theta) for theta in thetas]
        if self._listed is not None:
            made.__dict__.pop("mask", None)
            if self.index is not None:
                made.index = self.index[~torch.isin(self.index, self.index.new_tensor(gone))]
            return made
        made.__dict__.pop("index", None)
        if self.mask is not None and thetas:
            made.mask = self.mask.clone()
            made.mask[gone] = False
        return made

    def without_llms(self, dropped: Collection[tuple[int, int]]) -> Allowed:
        """Without the configurations that use some LLM: each is given as module and code."""
        if self._listed is not None:
            return self.without(
                [t for t in self._listed if not set(dropped).isdisjoint(enumerate(t))]
            )
        made = self.without(())
        made._dropped = self._dropped | set(dropped)
        if made.mask is not None and dropped:
            made.mask = made.mask.clone()
            by_module = made.mask.view(self.space.sizes)
            for module, code in dropped:
                by_module.select(module, code).fill_(False)
        return made

    @property
    def count(self) -> int | None:
        """How many may be chosen; None if they cannot be listed."""
        return None if self.index is None else len(self.index)

    def nearest(
        self,
        theta: Sequence[int],
        accept: RuleOfCodes | None = None,
        keep: Mapping[int, int] | None = None,
    ) -> Theta | None:
        """The allowed configuration that differs from `theta` in the fewest modules.

        Of equal ones the first by flat index.

        Args:
            theta: Codes.
            accept: What else must hold of the configuration; None for nothing.
            keep: Codes that some modules must have.

        Returns:
            None if there is none; where they cannot be listed, if none differs in 3 modules or
            fewer.
        """
        wanted = dict(keep or {})
        at = tuple(wanted.get(i, code) for i, code in enumerate(theta))
        if self(at) and (accept is None or accept(at)):
            return at
        around = self._by_distance(at, wanted) if self.index is None else self._listed_from(at)
        for one in around:
            if all(one[i] == code for i, code in wanted.items()) and (
                accept is None or accept(one)
            ):
                return one
        return None

    def _by_distance(self, theta: Theta, fixed: Collection[int]) -> Iterator[Theta]:
        """Those that differ from `theta` in 0, 1, 2 and 3 modules, none of them `fixed`."""
        free = [i for i in range(self.space.num_modules) if i not in fixed]
        for distance in range(_FAR + 1):
            for modules in itertools.combinations(free, distance):
                for codes in itertools.product(*(range(self.space.sizes[i]) for i in modules)):
                    changed = dict(zip(modules, codes, strict=True))
                    if any(theta[i] == code for i, code in changed.items()):
                        continue
                    one = tuple(changed.get(i, code) for i, code in enumerate(theta))
                    if self(one):
                        yield one

    def _listed_from(self, theta: Theta) -> Iterator[Theta]:
        """All of them, the nearest to `theta` first."""
        assert self.index is not None
        codes = self.space.unrank(self.index)
        order = (codes != torch.tensor(theta)).sum(-1).argsort(stable=True)
        for start in range(0, len(order), _DRAWN):
            yield from map(tuple, codes[order[start : start + _DRAWN]].tolist())

    def around(self, base: Theta, neighbours: Sequence[Theta]) -> list[Theta]:
        """In place of `base` and its neighbours: for each, who is nearest.

        Where all are allowed, they are these, in their order. Where one is not, the allowed
        configuration stands in its place that has the same LLM in the module that was changed, and
        differs from `base` in the fewest others.

        Args:
            base: Codes.
            neighbours: Configurations that differ from it in one module.
        """
        found = [self.nearest(base)]
        for theta in neighbours:
            changed = {i: llm for i, llm in enumerate(theta) if llm != base[i]}
            found.append(self.nearest(base, keep=changed))
        return list(dict.fromkeys(one for one in found if one is not None))

    def sample(self, count: int, generator: torch.Generator) -> list[Theta]:
        """At most `count` different ones, drawn uniformly at random; fewer if there are fewer."""
        if self.index is not None:
            drawn = torch.randperm(len(self.index), generator=generator)[:count]
            return [tuple(row) for row in self.space.unrank(self.index[drawn]).tolist()]
        seen: dict[Theta, None] = {}
        for _ in range(_DRAWN):
            columns = [
                torch.randint(n, (count,), generator=generator).tolist() for n in self.space.sizes
            ]
            for theta in zip(*columns, strict=True):
                if len(seen) < count and self(theta):
                    seen[theta] = None
            if len(seen) == count:
                break
        return list(seen)

    def digest(self) -> str:
        """A hash of which configurations may be chosen.

        Where they cannot be listed: of the name of the rule, and of its answers about 4096
        configurations, always the same.
        """
        if self.index is not None:
            return hashlib.sha256(self.index.numpy().tobytes()).hexdigest()[:16]
        if self._listed is not None:
            kept = sorted(filter(self, self._listed))
            return hashlib.sha256(repr(kept).encode()).hexdigest()[:16]
        generator = torch.Generator().manual_seed(0)
        columns = [
            torch.randint(n, (_DRAWN,), generator=generator).tolist() for n in self.space.sizes
        ]
        answers = [self(theta) for theta in zip(*columns, strict=True)]
        name = getattr(self._rule, "__qualname__", type(self._rule).__qualname__)
        return hashlib.sha256(f"{name} {answers}".encode()).hexdigest()[:16]
