"""A live run in which a call gives no reply: quality 0, whatever the fallback says."""

import pytest
from live_cases import MODULES, QUERIES, grade, live_on, problem, prompt_of, say, search
from llm.fake_endpoint import (
    FakeEndpoint,
    Status,
    only_loopback,  # noqa: F401
)

from scope_torch.observation import Observation, Request
from scope_torch.search.failing import FailingLLMs

REFUSED = Status(400, b'{"error": {"message": "Unsupported parameter: max_tokens"}}')


def without_m1(request):
    """`module1` may have it."""
    is_last = prompt_of(request).startswith("last")
    return REFUSED if request["model"] == "m1" and not is_last else say(request)


def test_a_call_without_reply_makes_the_run_a_failed_one_that_nobody_grades(tmp_path):
    graded = []

    def metric(output, query):
        graded.append(query)
        return grade(output, query)

    with FakeEndpoint(without_m1) as endpoint, live_on(endpoint, tmp_path, metric=metric) as live:
        live.evaluator.outcomes = True
        requests = [Request((1, 1), query) for query in range(5)]
        observed = list(live.evaluator.evaluate(requests))
        number = live.evaluator.num_failed
    assert [(o.failed, o.quality, o.module_cost_usd[0]) for o in observed] == [
        ("app", 0.0, 0.0)
    ] * 5
    assert all(o.cost_usd > 0 for o in observed)  # module1 worked on what the fallback said
    assert graded == []
    assert number == 10
    failing = FailingLLMs(problem())
    assert [failing.record(one) for one in observed] == [False] * 4 + [True]
    assert failing.dropped == [(0, 1)]
    for one in observed:
        assert one.outcomes["latency_s"] == one.latency_s > 0
        assert Observation.from_json(one.to_json()) == one


@pytest.mark.slow
def test_an_llm_that_never_answers_is_not_chosen(tmp_path):
    with FakeEndpoint(without_m1) as endpoint, live_on(endpoint, tmp_path) as live:
        result = search(live, None, budget_usd=0.01)
        assert problem().names(result.recommendation.theta)[MODULES[0]] != "llm1"
    failed = [one for one in result.history if one.failed]
    assert failed
    assert all(one.quality == 0.0 and one.theta[0] == 1 for one in failed)
    assert len(result.history) > len(failed) + len(QUERIES)
