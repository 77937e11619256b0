"""Fixtures of the tests of the endpoint; they reach this machine only."""

from collections.abc import Iterator

import pytest
from llm.fake_endpoint import only_loopback  # noqa: F401
from serve.fake_upstream import FakeUpstream
from serve.serve_cases import serving

from scope_torch.serve.endpoint import Endpoint


@pytest.fixture
def upstream() -> Iterator[FakeUpstream]:
    with FakeUpstream() as upstream:
        yield upstream


@pytest.fixture
def endpoint(upstream: FakeUpstream) -> Iterator[Endpoint]:
    with serving(upstream.url) as endpoint:
        yield endpoint
