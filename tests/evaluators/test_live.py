"""LiveEvaluator on a real HTTP server: costs, bills, concurrency, fingerprint."""

import contextlib
import os
import signal
import statistics
import threading
from dataclasses import replace

import pytest
from live_cases import (
    CANDIDATES,
    LLMS,
    MODULES,
    QUERIES,
    Script,
    call_usd,
    calls_of,
    grade,
    live_on,
    most_usd,
    prompt_of,
    say,
    search,
    toy,
)
from llm.fake_endpoint import (
    FakeEndpoint,
    Hold,
    Say,
    Status,
    only_loopback,  # noqa: F401
)
from tables import Task

from scope_torch.errors import InputError
from scope_torch.evaluators.live import LiveEvaluator
from scope_torch.llm.prices import load_llms
from scope_torch.observation import Request
from scope_torch.systems.unidm import entity_resolution
from scope_torch.tasks.dataset import Query
from scope_torch.tasks.grading import yes_or_no
from scope_torch.testing import EvaluatorConformance

ALL = [Request((i, j), q) for i in range(3) for j in range(2) for q in range(len(QUERIES))]


class TestLiveEvaluator(EvaluatorConformance):
    exact = False

    @pytest.fixture
    def make_evaluator(self, tmp_path):
        with contextlib.ExitStack() as closing:
            endpoint = closing.enter_context(FakeEndpoint(say))
            number = 0

            def make(task: Task) -> LiveEvaluator:
                nonlocal number
                number += 1
                queries = QUERIES[: task.problem.num_queries]
                store = f"{number}.sqlite"
                return closing.enter_context(
                    live_on(endpoint, tmp_path, queries=queries, store=store)
                ).evaluator

            yield make


def observe(live, *requests: Request):
    by_request = {o.request: o for o in live.evaluator.evaluate(requests)}
    return [by_request[request] for request in requests]


@pytest.mark.slow
def test_cost_and_tokens_are_those_of_all_calls_in_module_order(tmp_path):
    with FakeEndpoint(say) as endpoint, live_on(endpoint, tmp_path) as live:
        for observed in observe(live, *ALL):
            modules = calls_of(observed.theta, observed.query)
            costs = [sum(map(call_usd, calls)) for calls in modules]
            assert observed.module_cost_usd == pytest.approx(costs)
            assert observed.cost_usd == pytest.approx(sum(costs))
            completion = [sum(len(say(c).split()) for c in calls) for calls in modules]
            prompt = [
                sum(len(m["content"].split()) for c in calls for m in c["messages"])
                for calls in modules
            ]
            assert observed.module_tokens == tuple(zip(prompt, completion, strict=True))
            assert observed.quality == grade(say(modules[1][0]), QUERIES[observed.query])
            assert observed.latency_s > 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="POSIX")
def test_a_forked_child_is_refused(tmp_path):
    """Its loop and its graders run in threads of the parent: it would wait for ever."""
    with FakeEndpoint(say) as endpoint, live_on(endpoint, tmp_path) as live:
        observe(live, ALL[0])
        child = os.fork()
        if not child:
            signal.alarm(30)
            try:
                observe(live, ALL[1])
            except InputError as error:
                os._exit("make it in the child process" not in str(error))
            os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_outcomes_are_seconds_and_tokens_if_asked_for(tmp_path):
    with FakeEndpoint(say) as endpoint, live_on(endpoint, tmp_path) as live:
        fingerprint = live.evaluator.fingerprint()
        (plain,) = observe(live, ALL[0])
        live.evaluator.outcomes = True
        (named,) = observe(live, ALL[0])
        assert live.evaluator.fingerprint() == fingerprint
    assert plain.outcomes is None
    prompt, completion = zip(*named.module_tokens, strict=True)
    assert named.outcomes == {
        "latency_s": named.latency_s,
        "input_tokens": sum(prompt),
        "output_tokens": sum(completion),
    }


def test_an_output_that_cannot_be_parsed_has_quality_0_at_its_cost(tmp_path):
    def answer(request):
        return "garbled words" if prompt_of(request).startswith("last") else say(request)

    with FakeEndpoint(answer) as endpoint, live_on(endpoint, tmp_path) as live:
        (observed,) = observe(live, Request((1, 0), 2))
        first, (last,) = calls_of((1, 0), 2)
        cost = sum(map(call_usd, first)) + call_usd(last, "garbled words")
    assert observed.quality == 0.0
    assert observed.cost_usd == pytest.approx(cost) == pytest.approx(endpoint.billed_usd(LLMS))


def test_after_a_reply_that_cannot_be_parsed_the_next_module_reads_the_fallback(tmp_path):
    def answer(request):
        return "garbled" if prompt_of(request).startswith("second") else say(request)

    with FakeEndpoint(answer) as endpoint, live_on(endpoint, tmp_path) as live:
        (observed,) = observe(live, Request((1, 0), 2))
        texts = [prompt_of(request) for request in endpoint.requests]
    assert texts[-1] == "last plain query2 word word"
    assert observed.quality > 0
    assert observed.cost_usd == pytest.approx(endpoint.billed_usd(LLMS))


@pytest.mark.parametrize(
    ("trouble", "attempts", "billed"),
    [(Status(400), 1, False), (Status(500), 3, False), (Status(200, b'{"choices"'), 3, True)],
)
def test_a_call_without_reply_costs_quality_and_what_it_was_billed(
    tmp_path, trouble, attempts, billed
):
    def answer(request):
        return trouble if prompt_of(request).startswith("last") else say(request)

    with FakeEndpoint(answer) as endpoint, live_on(endpoint, tmp_path, retries=2) as live:
        (observed,) = observe(live, Request((1, 0), 2))
        total = live.store.total_billed_usd()
    first, (last,) = calls_of((1, 0), 2)
    lost = attempts * most_usd(last) if billed else 0.0
    assert len(endpoint.requests) == 2 + attempts
    assert observed.quality == 0.0
    assert observed.module_cost_usd == pytest.approx((sum(map(call_usd, first)), lost))
    assert observed.cost_usd == pytest.approx(total)
    assert observed.module_tokens[1] == (0, 0)
    assert live.client.estimated_usd == pytest.approx(lost)


@pytest.mark.slow
def test_shared_calls_are_paid_once_and_every_observation_carries_their_cost(tmp_path):
    script = Script()
    with FakeEndpoint(script) as endpoint, live_on(endpoint, tmp_path) as live:
        observations = observe(live, *ALL)
        ledger = live.store.billed_usd, live.store.replayed_usd
    calls = [c for o in observations for module in calls_of(o.theta, o.query) for c in module]
    # 3 LLMs x 6 queries x 2 calls; the second module reads what the first said
    distinct = {str(call): call for call in calls}
    assert len(distinct) == 36 + len({str(calls_of((i, j), q)[1]) for (i, j), q, _ in ALL})
    assert len(endpoint.requests) == len(distinct) < len(calls) == 108
    assert max(script.asked.values()) == 1
    bill = sum(map(call_usd, distinct.values()))
    spend = sum(o.cost_usd for o in observations)
    assert spend == pytest.approx(sum(map(call_usd, calls)))
    assert ledger[0] == pytest.approx(bill) == pytest.approx(endpoint.billed_usd(LLMS))
    assert ledger[1] == pytest.approx(spend - bill)
    assert live.client.billed_usd == pytest.approx(bill)


def test_effort_temperature_and_limit_of_a_choice_are_sent(tmp_path):
    names = ("llm0 effort=low max_tokens=50", "llm0"), ("llm1 temperature=0.5",)
    with FakeEndpoint(say) as endpoint, live_on(endpoint, tmp_path) as live:
        how = toy(), QUERIES, live.evaluator.metric, LLMS, live.store
        evaluator = LiveEvaluator(MODULES, names, *how)
        found = list(evaluator.evaluate([Request((0, 0), 0), Request((1, 0), 0)]))
        evaluator.close()
    for one in found:
        (prompt, completion), *_ = one.module_tokens
        assert one.module_cost_usd[0] == pytest.approx((prompt + 4 * completion) * 1e-6)
    assert [*evaluator.describe_prices()] == [*names[0], *names[1]]
    kept = "model", "max_tokens", "temperature", "reasoning_effort"
    sent = {tuple(request.get(key) for key in kept) for request in endpoint.requests}
    assert sent == {("m0", 50, 0.0, "low"), ("m0", 24, 0.0, None), ("m1", 24, 0.5, None)}


def test_replicates_are_paid_for_anew(tmp_path):
    with FakeEndpoint(say) as endpoint, live_on(endpoint, tmp_path) as live:
        observe(live, *(Request((0, 0), 0, replicate) for replicate in range(3)))
        assert len(endpoint.requests) == 9
        observe(live, Request((0, 0), 0, 1))
        assert len(endpoint.requests) == 9


class Crowd:
    """Holds requests until 14 are in flight, or none comes for 0.1 s; then answers by `say`.

    Attributes:
        in_flight: For each request, how many were in flight when it was let go.
    """

    def __init__(self) -> None:
        self.endpoint: FakeEndpoint | None = None
        self.in_flight: list[int] = []
        self._came, self._number, self._let_go = threading.Condition(), 0, 0

    def __call__(self, request: dict) -> str:
        assert self.endpoint is not None
        with self._came:
            self._number += 1
            mine = last = self._number
            if self.endpoint.in_flight >= 14:
                self._let_go = mine
            self._came.notify_all()
            while self._let_go < mine:
                if not self._came.wait(0.1) and last == self._number:
                    break
                last = self._number
            self.in_flight.append(14 if self._let_go >= mine else self.endpoint.in_flight)
        return say(request)


def many(number: int) -> list[Query]:
    return [Query({"text": f"query{q}"}, f"gold{q}") for q in range(number)]


@pytest.mark.slow
def test_a_configuration_on_all_queries_fills_the_slots(tmp_path):
    crowd, system = Crowd(), toy(parts=["only"])  # so every query has one call in flight
    settings = {"concurrency": 16, "queries": many(64), "system": system}
    with (
        FakeEndpoint(crowd) as crowd.endpoint,
        live_on(crowd.endpoint, tmp_path, **settings) as live,
    ):
        observe(live, *(Request((0, 1), q) for q in range(64)))
        assert live.client.max_in_flight == 16
    assert len(crowd.in_flight) > 120
    assert statistics.median(crowd.in_flight) >= 14


@pytest.mark.slow
def test_calibrate_and_batches_fill_the_slots(tmp_path):
    """A round of one request has 8 calls to make, so nearly all rounds have 14."""
    crowd, system = Crowd(), toy(parts=[f"part{i}" for i in range(8)])
    settings = {"concurrency": 16, "queries": many(8), "system": system}
    with (
        FakeEndpoint(crowd) as crowd.endpoint,
        live_on(crowd.endpoint, tmp_path, **settings) as live,
    ):
        result = search(live, None, budget_usd=0.006, batch_size=16)
    assert {"calibrated", "selected"} <= {row.event for row in result.trace}
    assert len(crowd.in_flight) > 100
    assert statistics.median(crowd.in_flight) >= 14


@pytest.mark.slow
def test_a_slow_metric_holds_up_no_other_query(tmp_path):
    """The last query is called and graded while all others are still being graded."""
    waiting, gate, others = threading.Barrier(13), threading.Event(), 12

    def metric(output: str, query: Query) -> float:
        if query.gold != "gold12":
            waiting.wait(20)  # for the other slow gradings, and for the test
            gate.wait(20)
        return grade(output, query)

    settings = {"concurrency": 13, "queries": many(13), "metric": metric}
    with FakeEndpoint(say) as endpoint, live_on(endpoint, tmp_path, **settings) as live:
        hold = threading.Event()
        endpoint._answer = lambda r: (
            Hold(hold, Say(say(r))) if "query12" in prompt_of(r) else say(r)
        )
        observations = iter(live.evaluator.evaluate([Request((0, 0), q) for q in range(13)]))
        threading.Thread(target=lambda: (waiting.wait(20), hold.set())).start()
        assert next(observations).query == 12
        gate.set()
        assert len(list(observations)) == others


@pytest.mark.slow
def test_the_fingerprint_is_of_what_is_asked_and_priced(tmp_path):
    def fingerprint(url="http://127.0.0.1:9/v1", **changes) -> str:
        with FakeEndpoint(say) as endpoint:
            endpoint.url = url
            with live_on(endpoint, tmp_path, **changes) as live:
                return live.evaluator.fingerprint()

    base = fingerprint()
    assert fingerprint(url="http://127.0.0.1:10/v1") == base
    assert fingerprint(concurrency=2, store="other.sqlite", retries=3) == base
    dearer = {**LLMS, "llm1": replace(LLMS["llm1"], output_usd_per_mtok=9.0)}
    other_model = {**LLMS, "llm1": replace(LLMS["llm1"], model="m9")}
    prompting = {**LLMS, "llm1": replace(LLMS["llm1"], prompting="few_shot")}
    batch = {**LLMS, "llm1": replace(LLMS["llm1"], batch_factor=0.5)}  # live calls are none
    assert fingerprint(llms=batch) == base
    free = replace(LLMS["llm1"], input_usd_per_mtok=0.0, output_usd_per_mtok=0.0)
    machine = {**LLMS, "llm1": replace(free, gpu_hour_usd=2.5)}
    regraded = [*QUERIES[:-1], QUERIES[-1]._replace(gold="other")]
    changed = [
        fingerprint(system=toy("2")),
        *(fingerprint(llms=llms) for llms in (dearer, other_model, prompting, machine)),
        *(fingerprint(queries=queries) for queries in (QUERIES[:-1], QUERIES[::-1], regraded)),
    ]
    assert len({base, *changed}) == 1 + len(changed)


def test_directories_of_earlier_versions_stay_those_of_the_same_run():
    """The fingerprints: of before LLMs had a batch_factor and a gpu_hour_usd; and of 0.1.0."""
    system, llms = entity_resolution(), ["GPT-5.2"]
    modules = [module.name for module in system.modules]
    pairs = [Query({"entity_a": {"name": "Bob"}, "entity_b": {"name": "Robert"}}, gold=1)]
    evaluator = LiveEvaluator(
        modules, [llms] * 3, system, pairs, yes_or_no, load_llms(), client=None
    )
    assert evaluator.fingerprint().startswith("unidm_er-f12d41bbb613a8a1, ")
    assert "unidm_er-2d9195257e9ac289" in evaluator.earlier_fingerprints()
    evaluator.close()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"modules": ("module1", "module0")}, r"modules=\['module1', 'module0'\]: toy has"),
        ({"llms": (("llm0", "typo"), ("llm0",))}, "no price is known for LLM 'typo'"),
        ({"llms": (("llm0 prompt=v1",), ("llm0",))}, "nothing else of a choice; leave out prompt"),
        ({"concurrency": 0}, "concurrency=0 must be at least 1"),
    ],
)
def test_settings_that_do_not_fit_are_refused(changes, message):
    settings = {"modules": MODULES, "llms": CANDIDATES, "system": toy(), "queries": QUERIES}
    settings |= {"metric": grade, "prices": LLMS, "client": None}
    with pytest.raises(InputError, match=message):
        LiveEvaluator(**{**settings, **changes})


@pytest.mark.parametrize("num_observed", [0, 1])
def test_close_closes_the_store_whether_or_not_it_was_used(tmp_path, num_observed):
    with FakeEndpoint(say) as endpoint, live_on(endpoint, tmp_path) as live:
        observe(live, *(Request((0, 0), q) for q in range(num_observed)))
        live.evaluator.close()
        assert live.evaluator._loop is None
        with pytest.raises(InputError, match="the store was closed"):
            live.store.total_billed_usd()


def test_the_bill_says_how_much_is_estimated(tmp_path, caplog):
    def answer(request: dict) -> Say:
        unknown = {"prompt_tokens": 0, "completion_tokens": 0}
        return Say(say(request), unknown) if "query1" in prompt_of(request) else Say(say(request))

    with FakeEndpoint(answer) as endpoint, live_on(endpoint, tmp_path) as live:
        observe(live, Request((0, 0), 0), Request((0, 0), 1))
        assert live.store.num_estimated == 2  # the two calls of the first module
        assert 0 < live.store.estimated_usd < live.store.billed_usd
    said = [record.getMessage() for record in caplog.records]
    assert "2 replies or failed attempts came without usage" in said[-1]
    assert f"{live.store.estimated_usd:.3g} USD of the bill" in said[-1]
    assert len(said) == 2
