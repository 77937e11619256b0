"""The token bucket against a clock that the test moves."""

import asyncio
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scope_torch.llm.rate_limit import TokenBucket


class Clock:
    """A clock that moves only when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 100.0
        self.naps: list[float] = []

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.naps.append(seconds)
        self.now += seconds


def passed_at(bucket: TokenBucket, clock: Clock, amounts: list[float]) -> list[float]:
    """The time in seconds at which each amount passed, one after the other."""

    async def take_all() -> list[float]:
        start, times = clock.now, []
        for amount in amounts:
            await bucket.take(amount)
            times.append(clock.now - start)
        return times

    return asyncio.run(take_all())


def bucket_of(clock: Clock, per_minute: float | None, burst_s: float = 1.0) -> TokenBucket:
    return TokenBucket(per_minute, burst_s=burst_s, clock=clock, sleep=clock.sleep)


def test_no_limit_never_waits():
    clock = Clock()
    assert passed_at(bucket_of(clock, None), clock, [1e9] * 5) == [0.0] * 5
    assert clock.naps == []


def test_requests_are_spread_evenly():
    """30 a minute: the first at once, then one every 2 s."""
    clock = Clock()
    assert passed_at(bucket_of(clock, 30), clock, [1] * 4) == pytest.approx([0, 2, 4, 6])


def test_a_burst_passes_at_once():
    clock = Clock()
    times = passed_at(bucket_of(clock, 60, burst_s=3), clock, [1] * 5)
    assert times == pytest.approx([0, 0, 0, 1, 2])


def test_what_was_not_used_does_not_add_up_beyond_a_burst():
    clock = Clock()
    bucket = bucket_of(clock, 60)
    clock.now += 1000
    assert passed_at(bucket, clock, [1, 1, 1]) == pytest.approx([0, 1, 2])


def test_more_than_a_burst_goes_into_debt():
    """600 a minute, 10 at once: 50 pass when the bucket is full, and leave it in debt."""
    clock = Clock()
    times = passed_at(bucket_of(clock, 600), clock, [50, 10, 1])
    assert times == pytest.approx([0, 5, 5.1])


def test_corrections():
    clock = Clock()
    bucket = bucket_of(clock, 600)
    bucket.give_back(100)  # a full bucket stays full
    assert passed_at(bucket, clock, [50]) == [0.0]
    bucket.give_back(40)
    assert passed_at(bucket, clock, [10]) == pytest.approx([1.0])
    bucket.give_back(-20)
    assert passed_at(bucket, clock, [10]) == pytest.approx([3.0])


@settings(max_examples=50)
@given(
    per_minute=st.integers(1, 100_000),
    amounts=st.lists(st.integers(1, 5000), min_size=1, max_size=30),
)
def test_the_limit_is_kept_and_used(per_minute, amounts):
    """Up to t seconds, at most rate x t + burst + one amount pass; and none later than needed."""
    clock = Clock()
    times = passed_at(bucket_of(clock, per_minute), clock, amounts)
    burst = max(1.0, per_minute / 60)
    before = 0
    for amount, at in zip(amounts, times, strict=True):
        assert before <= burst + at * per_minute / 60 * (1 + 1e-6) + 1e-6
        needed = max(0.0, before + min(amount, burst) - burst) * 60 / per_minute
        assert at <= needed * (1 + 1e-6) + 2e-3 * len(amounts)
        before += amount


def test_several_event_loops_share_it():
    clock = Clock()
    bucket = bucket_of(clock, 600)
    threads = [
        threading.Thread(target=lambda: asyncio.run(bucket.take(10)), daemon=True) for _ in range(5)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    assert clock.now - 100 >= 4 - 1e-6  # 10 at once, the other 40 at 10 a second
