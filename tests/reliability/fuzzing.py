"""Inputs nobody meant, and tests on many of them."""

import contextlib
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from long_runs import IS_LONG

from scope_torch.errors import InputError

Check = Callable[[Any], None]
ODD = st.sampled_from(
    ["", " ", "nan", "NaN", "inf", "-inf", "-0.0", "-1", "1e999", "1e-400", "0x1", "1_0", "true",
     "null", '"', "'", "\0", "\n", ",", "{", "[" * 3000, "\ufeff", "\ud7ff", "1" * 400, "9" * 5000,
     "=1", "../x", "${oc.env:HOME}", "${x", "???", "2020-01-01", "c-pro", "a-nano"]
)  # fmt: skip
ANY_TEXT = ODD | st.text(max_size=20)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(ANY_TEXT, inner, max_size=4),
    max_leaves=12,
)


@contextlib.contextmanager
def no_hang() -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise AssertionError("no end in sight")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(60)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def fuzzed(strategy: st.SearchStrategy[Any], few: int, many: int) -> Callable[[Check], Check]:
    """A test on `few` inputs, and a slow one on `many` in a long run, else on a fifth of them."""
    some = many if IS_LONG else many // 5

    def decorate(check: Callable[..., None]) -> Any:
        @pytest.mark.parametrize("count", [few, pytest.param(some, marks=pytest.mark.slow)])
        def test(tmp_path: Path, count: int) -> None:
            @settings(
                max_examples=count,
                deadline=None,
                derandomize=True,
                database=None,
                suppress_health_check=list(HealthCheck),
            )
            @given(strategy)
            def each(value: Any) -> None:
                with no_hang():
                    check(value, tmp_path)

            each()

        test.__doc__ = check.__doc__
        test.__name__ = check.__name__
        return test

    return decorate


@st.composite
def damaged(draw: st.DrawFn, whole: bytes, edits: int = 4) -> bytes:
    """Bytes cut, repeated, swapped or replaced."""
    content = whole
    for _ in range(draw(st.integers(1, edits))):
        a, b = sorted((draw(st.integers(0, len(content))), draw(st.integers(0, len(content)))))
        b = draw(st.sampled_from([b, a, min(a + 1, len(content))]))
        new = draw(st.binary(max_size=6) | ODD.map(str.encode) | st.just(content[a:b] * 2))
        content = content[:a] + new + content[b:]
    return content


def tried(function: Callable[..., Any], *arguments: Any, **more: Any) -> tuple[Any, str]:
    """What a function returns, or why it refuses."""
    try:
        return function(*arguments, **more), ""
    except InputError as error:
        refusal = str(error)
    assert len(refusal.splitlines()) == 1
    return None, refusal
