"""LLMs that cost the hours of a machine: seconds x USD, wherever seconds are measured."""

import itertools
import math
from dataclasses import replace
from pathlib import Path

import pytest
from llm.client_cases import CALL, run
from llm.fake_endpoint import only_loopback  # noqa: F401
from serve.fake_upstream import FakeUpstream
from serve.serve_cases import CHOICE, PATHS, body_of, post, serving

import scope_torch as st
from scope_torch.errors import InputError
from scope_torch.llm.billing import Usage
from scope_torch.llm.price_list import PriceList
from scope_torch.llm.prices import LLMInfo, load_llms
from scope_torch.llm.retrying import Connection, RetryingClient
from scope_torch.observation import Observation
from scope_torch.results.bill import Bill
from scope_torch.runs.repricing import repriced
from scope_torch.serve import app
from scope_torch.traces.reading import read_traces
from scope_torch.traces.summary import TraceRules, summarize

LOCAL = LLMInfo("local", 0.0, 0.0, gpu_hour_usd=2.5, concurrent_calls=4)
USD_PER_S = 2.5 / 3600 / 4
USAGE = Usage(1000, 100)
NOW = [0.0]
REPORT = {"prompt_tokens": 9, "completion_tokens": 4}


def written(tmp_path, text):
    path = tmp_path / "prices.toml"
    path.write_text(f'version = 1\n[[llm]]\nname = "local"\n{text}\n')
    return path


def test_a_call_costs_its_share_of_the_machine(tmp_path):
    prices = PriceList(written(tmp_path, "gpu_hour_usd = 2.5\nconcurrent_calls = 4"))
    assert prices.own["local"] == LOCAL
    assert prices.cost_usd("local", USAGE, 7.2) == pytest.approx(0.00125, rel=1e-15)
    assert prices.is_timed("local")
    assert not prices.is_timed("gpt-4o-mini")
    tokens = prices.cost_usd("gpt-4o-mini", USAGE)
    assert prices.cost_usd("gpt-4o-mini", USAGE, 7.2) == tokens
    alone = replace(LOCAL, concurrent_calls=1)
    assert PriceList({"local": alone}).cost_usd("local", USAGE, 3600.0) == pytest.approx(2.5)


@pytest.mark.parametrize(
    "text",
    [
        "gpu_hour_usd = -1.0",
        'gpu_hour_usd = "2"',
        "gpu_hour_usd = 2.0\nconcurrent_calls = 0",
        "gpu_hour_usd = 2.0\ninput_usd_per_mtok = 0.1",
        "gpu_hour_usd = 2.0\nbatch_factor = 0.5",
    ],
)
def test_what_cannot_be_is_refused(tmp_path, text):
    with pytest.raises(InputError, match=r"gpu_hour_usd|concurrent_calls"):
        load_llms(written(tmp_path, text))


def test_seconds_that_nobody_measured_are_no_guess():
    with pytest.raises(InputError, match=r"'local' costs gpu_hour_usd.*endpoint="):
        PriceList({"local": LOCAL}).cost_usd("local", USAGE)
    with pytest.raises(InputError, match=r"'local' costs gpu_hour_usd"):
        st.select(
            lambda _, x: (x, {"only": (1000, 100)}),
            models={"only": ["local", "other"]}, dataset=[("a", "a"), ("b", "b")],
            max_quality_loss=0.5, metric=st.metrics.exact_match, reference="local", budget_usd=1,
            prices={"local": LOCAL, "other": replace(LOCAL, name="other")},
        )  # fmt: skip
    with pytest.raises(InputError, match="no batch price is known for 'local'"):
        PriceList({"local": LOCAL}, batch=True).check(["local"])


@pytest.mark.parametrize("stream", [False, True])
def test_the_endpoint_measures_from_request_to_end(monkeypatch, stream):
    """Each look at the clock is 36 s later: a call begins at one look, and ends at the next."""
    monkeypatch.setattr(app, "monotonic", itertools.count(0.0, 36.0).__next__)
    prices = PriceList({"medium": replace(LOCAL, name="medium"), "small": LLMInfo("small", 1, 1)})
    choice = {module: CHOICE[module] for module in ("planner", "solver")}
    with FakeUpstream() as upstream, serving(upstream.url, prices=prices) as endpoint:
        with endpoint.query(choice) as query:
            for _ in range(2):
                got = post(query.base_url + PATHS[0], body_of(PATHS[0], stream=stream))
                assert got.status == 200
        bill = query.ledger.by_module()["planner"]
    assert bill.calls == 2
    assert bill.cost_usd == pytest.approx(2 * 36.0 * USD_PER_S, rel=1e-14)


class Machine(RetryingClient):
    """Time passes only here: the first attempt fails after 10 s, replies take 7 s."""

    def _check_access(self):
        pass

    def _connect(self):
        seconds = iter([10.0, 7.0])

        async def send(_):
            NOW[0] += (took := next(seconds))
            if took == 10.0:
                raise TimeoutError
            return {"choices": [{"message": {"content": "it is"}}], "usage": REPORT}

        async def close():
            pass

        return Connection(send, close)


def test_the_client_pays_each_attempt_and_no_wait_between_them():
    async def wait(_):
        NOW[0] += 1000.0

    client = Machine({"a": replace(LOCAL, name="a")}, clock=lambda: NOW[0], sleep=wait)
    (reply,) = run(client, CALL)
    assert (reply.prompt_tokens, reply.latency_s) == (9, 1017.0)
    assert reply.failed_usd == pytest.approx(10 * USD_PER_S, rel=1e-12)
    assert reply.cost_usd == client.billed_usd == pytest.approx(17 * USD_PER_S, rel=1e-12)


def test_traces_know_the_seconds_of_calls():
    own = {name: replace(LOCAL, name=name) for name in ("gpt-4o-mini", "gpt-4o")}
    log = Path(__file__).parents[1] / "traces/fixtures/langfuse.jsonl"
    rules = TraceRules(prices=PriceList(own), reprice=True)
    solve = summarize(read_traces([log]), rules).modules["solve"]
    assert solve.failed == 0
    assert solve.cost_usd == pytest.approx(solve.seconds * USD_PER_S, rel=1e-12)


def described(usd_per_s=None, usd=0.0):
    prices = {"input_usd_per_mtok": usd, "output_usd_per_mtok": usd}
    return {"m": prices if usd_per_s is None else {**prices, "usd_per_s": usd_per_s}}


def test_an_older_run_at_other_prices():
    one = Observation((0,), 0, cost_usd=0.3, quality=1.0, module_tokens=((1_000_000, 500_000),))
    assert repriced(one, ["m"], described(0.1), described(0.1)) is one
    dearer = repriced(one, ["m"], described(0.1), described(0.2))
    assert dearer.cost_usd == pytest.approx(0.6)
    by_tokens = repriced(one, ["m"], described(0.1), described(usd=2.0))
    assert by_tokens.cost_usd == 3.0
    for old in (described(usd=2.0), described(0.0), None):  # how many seconds it took is unknown
        assert repriced(one, ["m"], old, described(0.1)) == "no_seconds"


def test_bill_and_plan_name_the_machine():
    prices = PriceList({"local": LOCAL, "mini": LLMInfo("mini", 0.25, 2.0)})
    told = str(Bill(prices=prices.describe(["local", "mini"])))
    assert "local: 0.625 (USD for an hour of calls; own prices)" in told
    plan = st.select(
        lambda _, x: (x, 0.01), models={"only": ["local", "mini"]}, dataset=[("a", "a")] * 9,
        metric=st.metrics.exact_match, reference="local", max_quality_loss=0.5, budget_usd=1,
        prices=prices, dry_run=True,
    )  # fmt: skip
    assert "USD per million tokens (in, out): mini 0.25, 2" in str(plan)
    assert "local 0" not in str(plan)


@pytest.mark.slow
@pytest.mark.parametrize("machine", [True, False])
def test_an_application_says_its_seconds(machine):
    """Modules on machines cost seconds, others tokens; a module without calls costs nothing."""
    own = {"local": LOCAL, "mini": LLMInfo("mini", 0.25, 2.0)}

    def app(models, x):
        seconds = {"plan": 8.0, "answer": 2.0} if machine else {}
        tokens = {"plan": (90, 7), "answer": (1000, 0)}
        return {"output": x, "tokens": tokens, "seconds": seconds}

    def selected():
        return st.select(
            app, models={name: list(own) for name in ("plan", "answer", "rest")},
            dataset=[("a", "a")] * 9, metric=st.metrics.exact_match, max_quality_loss=0.5,
            reference=["local", "mini", "local"],
            budget_usd=1, prices=PriceList(own), repeats=0, progress=False, holdout=0,
        )  # fmt: skip

    if not machine:
        with pytest.raises(st.InputError, match=r"'local' costs gpu_hour_usd.*seconds by module"):
            selected()
        return
    (first, *_) = selected().reference
    assert first.module_cost_usd == pytest.approx((8 * USD_PER_S, 1000 * 0.25e-6, 0), rel=1e-12)


@pytest.mark.parametrize("seconds", [{"plan": -1.0}, {"plan": math.nan}, {"plan": "x"}, {"who": 1}])
def test_wrong_seconds_are_refused(seconds):
    def app(_, x):
        return {"output": x, "tokens": {"plan": (90, 7)}, "seconds": seconds}

    with pytest.raises(st.InputError):
        st.select(
            app, models={"plan": ["local", "b"]}, dataset=[("a", "a")] * 9, budget_usd=1,
            metric=st.metrics.exact_match, reference="local", max_quality_loss=0.5, progress=False,
            prices=PriceList({name: replace(LOCAL, name=name) for name in ("local", "b")}),
        )  # fmt: skip
