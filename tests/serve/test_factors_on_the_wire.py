"""What each API gets of the factors of a choice: exact bodies, and what is refused.

Where the keys come from is said in `scope_torch/serve/factors.py`.
"""

import asyncio
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import anthropic
import openai
import pytest
from llm.fake_endpoint import FakeEndpoint
from serve.fake_upstream import LLMS, FakeUpstream, Say, Status
from serve.path_server import Reply, path_server
from serve.serve_cases import MESSAGES, PATHS, body_of, message_of, post, serving

import scope_torch as st
from scope_torch.errors import InputError
from scope_torch.factors import LLM, product
from scope_torch.llm.chat import ChatCall, Message
from scope_torch.llm.client import OpenAIClient
from scope_torch.llm.price_list import PriceList
from scope_torch.llm.prices import LLMInfo
from scope_torch.llm.store import ResponseStore
from scope_torch.results.bill import Bill
from scope_torch.results.saving import load_chain, save_models
from scope_torch.serve import current
from scope_torch.serve.chain import Chain
from scope_torch.serve.factors import ANTHROPIC, GOOGLE, OPENAI, OPENROUTER
from scope_torch.serve.upstream import Answer

CHAT, RESPONSES, CLAUDE = PATHS
USAGE = {"prompt_tokens": 9, "completion_tokens": 4, "input_tokens": 9, "output_tokens": 4}
OWN = PriceList({name: LLMInfo(name, 1.0, 4.0) for name in ("m", "claude-m")})


@contextmanager
def behind(monkeypatch, host, prices=OWN, **settings):
    """An endpoint that asks a well-known host, behind a proxy on this machine; and what came."""
    with path_server(lambda _: Reply({"id": "r", "usage": USAGE})) as (url, asked):
        monkeypatch.setenv("HTTP_PROXY", f"http://{urlsplit(url).netloc}")
        with serving(f"http://{host}/v1", prices=prices, **settings) as endpoint:
            yield endpoint, asked


def sent(monkeypatch, host, path, choice, prices=OWN, **more):
    """The body that a host gets, without what stays as the application sent it."""
    with behind(monkeypatch, host, prices) as (endpoint, asked):
        with endpoint.query({"planner": choice}) as query:
            got = post(query.base_url + path, body_of(path, **more))
            assert got.status == 200, got.body
        (request,) = asked
        assert request.path == f"http://{host}/v1{path}"
    words = "input" if path == RESPONSES else "messages"
    assert request.body.pop(words) == MESSAGES
    return request.body


@pytest.mark.parametrize(
    ("host", "path", "choice", "more", "expected"),
    [
        # OpenAI: reasoning_effort; max_tokens is deprecated for max_completion_tokens.
        (OPENAI, CHAT, "m effort=low", {}, {"max_tokens": 32, "reasoning_effort": "low"}),
        (OPENAI, CHAT, "m effort=low temperature=0.2 top_p=0.9", {"reasoning_effort": "high",
         "temperature": 1}, {"max_tokens": 32, "reasoning_effort": "low", "temperature": 0.2,
                             "top_p": 0.9}),
        (OPENAI, CHAT, "m max_tokens=500", {}, {"max_tokens": 500}),
        (OPENAI, CHAT, "m max_tokens=500", {"max_tokens": None}, {"max_completion_tokens": 500}),
        (OPENAI, CHAT, "m max_tokens=500", {"max_tokens": 7, "max_completion_tokens": 9},
         {"max_completion_tokens": 500}),
        ("localhost.example", CHAT, "m max_tokens=500", {"max_tokens": None}, {"max_tokens": 500}),
        ("localhost.example", CHAT, "m effort=low", {}, {"max_tokens": 32,
                                                         "reasoning_effort": "low"}),
        # Other factors are the application's own.
        (OPENAI, CHAT, "m prompt=v1 size=3", {}, {"max_tokens": 32}),
        (OPENAI, RESPONSES, "m effort=minimal max_tokens=90", {"reasoning": {"effort": "high",
         "summary": "auto"}}, {"reasoning": {"effort": "minimal", "summary": "auto"},
                               "max_output_tokens": 90}),
        (OPENAI, RESPONSES, "m temperature=0", {}, {"max_output_tokens": 32, "temperature": 0}),
        # Anthropic: output_config.effort, thinking; max_tokens counts the thinking.
        (ANTHROPIC, CLAUDE, "m effort=low", {"output_config": {"format": {"type": "json_schema"}}},
         {"max_tokens": 32, "output_config": {"format": {"type": "json_schema"},
                                              "effort": "low"}}),
        (ANTHROPIC, CLAUDE, "m thinking_tokens=2000", {"temperature": 0, "top_k": 5, "top_p": 0.5,
         "thinking": {"type": "adaptive", "display": "omitted"}},
         {"max_tokens": 2032, "thinking": {"type": "enabled", "budget_tokens": 2000,
                                           "display": "omitted"}}),
        (ANTHROPIC, CLAUDE, "m thinking_tokens=2000 max_tokens=4000 effort=high", {},
         {"max_tokens": 4000, "thinking": {"type": "enabled", "budget_tokens": 2000},
          "output_config": {"effort": "high"}}),
        (ANTHROPIC, CLAUDE, "m thinking_tokens=0 temperature=0.5", {"thinking": {
            "type": "enabled", "budget_tokens": 5000, "display": "omitted"}},
         {"max_tokens": 32, "thinking": {"type": "disabled"}, "temperature": 0.5}),
        (ANTHROPIC, CLAUDE, "m thinking_tokens=2000 temperature=1 top_p=0.95", {"temperature": 0},
         {"max_tokens": 2032, "thinking": {"type": "enabled", "budget_tokens": 2000},
          "temperature": 1, "top_p": 0.95}),
        (ANTHROPIC, CHAT, "claude-m thinking_tokens=1024", {"temperature": 0, "max_tokens": 1025},
         {"max_tokens": 1025, "thinking": {"type": "enabled", "budget_tokens": 1024}}),
        # Gemini: reasoning_effort and thinking_budget exclude each other.
        (GOOGLE, CHAT, "m thinking_tokens=512", {"reasoning_effort": "high", "temperature": 0},
         {"max_tokens": 544, "temperature": 0,
          "extra_body": {"google": {"thinking_config": {"thinking_budget": 512}}}}),
        (GOOGLE, CHAT, "m thinking_tokens=0", {"extra_body": {"google": {
            "cached_content": "c", "thinking_config": {"thinking_level": "low",
                                                       "include_thoughts": True}}}},
         {"max_tokens": 32, "extra_body": {"google": {"cached_content": "c", "thinking_config": {
             "include_thoughts": True, "thinking_budget": 0}}}}),
        (GOOGLE, CHAT, "m effort=low", {"extra_body": {"google": {"thinking_config": {
            "thinking_budget": 900}}}},
         {"max_tokens": 32, "reasoning_effort": "low",
          "extra_body": {"google": {"thinking_config": {}}}}),
        # OpenRouter: one of reasoning.effort and reasoning.max_tokens.
        (OPENROUTER, CHAT, "m effort=low", {"reasoning_effort": "high", "reasoning": {
            "max_tokens": 9000, "exclude": True}},
         {"max_tokens": 32, "reasoning": {"exclude": True, "effort": "low"}}),
        (OPENROUTER, CHAT, "m thinking_tokens=2000", {"temperature": 0, "reasoning": {
            "effort": "high", "enabled": True}},
         {"max_tokens": 2032, "temperature": 0, "reasoning": {"max_tokens": 2000}}),
        (OPENROUTER, CHAT, "claude-m thinking_tokens=2000", {"temperature": 0},
         {"max_tokens": 2032, "reasoning": {"max_tokens": 2000}}),
        (OPENROUTER, CHAT, "m thinking_tokens=0", {"reasoning": {"max_tokens": 9000}},
         {"max_tokens": 32, "reasoning": {"effort": "none"}}),
    ],
)  # fmt: skip
def test_the_body_that_a_host_gets(monkeypatch, host, path, choice, more, expected):
    model = LLM.parse(choice).llm
    assert sent(monkeypatch, host, path, choice, **more) == {"model": model, **expected}


@pytest.mark.parametrize(
    ("host", "path", "choice", "what"),
    [
        (OPENAI, CHAT, "m thinking_tokens=2000", "/chat/completions of api.openai.com has no "
         "thinking_tokens; give effort="),
        ("localhost.example", CHAT, "m thinking_tokens=0", "has no thinking_tokens"),
        (OPENAI, RESPONSES, "m thinking_tokens=2000", "/responses of api.openai.com has no thin"),
        (OPENROUTER, RESPONSES, "m thinking_tokens=2000", "has no thinking_tokens"),
        (ANTHROPIC, CHAT, "m effort=low", "/chat/completions of api.anthropic.com has no effort; "
         "let the application ask for /messages"),
        (ANTHROPIC, CLAUDE, "m thinking_tokens=1023", "has no thinking_tokens below 1024"),
        (OPENROUTER, CHAT, "m thinking_tokens=1", "has no thinking_tokens below 1024"),
        (ANTHROPIC, CLAUDE, "m thinking_tokens=2000 temperature=0.9", "no such temperature be"),
        (OPENROUTER, CHAT, "claude-m thinking_tokens=2000 top_p=0.9", "no such top_p beside think"),
        (ANTHROPIC, CHAT, "claude-m temperature=1.5", "no temperature above 1"),
        (GOOGLE, CHAT, "m thinking_tokens=2000 effort=low", "no effort beside thinking_tokens"),
        (OPENROUTER, CHAT, "m effort=low thinking_tokens=0", "no effort beside thinking_tokens"),
    ],
)  # fmt: skip
def test_what_an_api_cannot_set_is_refused_before_money_is_spent(
    monkeypatch, host, path, choice, what
):
    with behind(monkeypatch, host) as (endpoint, asked):
        with endpoint.query({"planner": choice}) as query:
            got = post(query.base_url + path, body_of(path))
        assert (got.status, asked) == (400, [])
        assert got.headers["x-should-retry"] == "false"
        assert message_of(got).startswith(f"{choice!r}: ")
        assert what in message_of(got)
        assert query.refused == message_of(got)
        assert query.ledger.by_module() == {}


@pytest.mark.parametrize(
    ("choice", "what"),
    [
        ("m effort=3", "effort=3 must be a word"),
        ("m temperature=hot", "temperature='hot' must be a number"),
        ("m temperature=-1", "at least 0"),
        ("m temperature=True", "must be a number"),
        ("m top_p=0", "above 0, up to 1"),
        ("m max_tokens=0", "a whole number above 0"),
        ("m max_tokens=9.5", "a whole number above 0"),
        ("m thinking_tokens=-1", "0 for no thinking"),
        ("m max_tokens=500 thinking_tokens=500", "leaves no reply"),
        ("silent temperature=0.5", "takes no temperature"),
        ("nobody effort=low", "no price is known for 'nobody';"),
    ],
)
def test_values_that_no_request_can_have_are_refused_at_once(upstream, choice, what):
    silent = LLMInfo("silent", 1.0, 4.0, takes_temperature=False)
    own = PriceList({"m": LLMInfo("m", 1.0, 4.0), "silent": silent})
    with serving(upstream.url, prices=own) as endpoint:
        with pytest.raises(InputError, match=what), endpoint.query({"planner": choice}):
            pass
        with pytest.raises(InputError, match=what):
            serving(upstream.url, prices=own, chosen={"planner": choice}).__enter__()


def test_the_keys_are_those_of_the_vendors_own_clients(monkeypatch):
    """Each client sends by itself what the endpoint makes of a request without these settings."""
    google = {"google": {"thinking_config": {"thinking_budget": 1500}}}
    with path_server(lambda _: Reply({"id": "r", "usage": USAGE})) as (url, asked):
        mine = openai.OpenAI(base_url=url, api_key="-")
        theirs = anthropic.Anthropic(base_url=url.removesuffix("/v1"), api_key="-")
        said: Any = {"model": "m", "messages": MESSAGES}
        mine.chat.completions.create(**said, reasoning_effort="low", max_completion_tokens=90)
        mine.responses.create(
            model="m", input=MESSAGES, reasoning={"effort": "low"}, max_output_tokens=90
        )
        theirs.messages.create(
            **said,
            max_tokens=4000,
            output_config={"effort": "low"},
            thinking={"type": "enabled", "budget_tokens": 2000},
        )
        # The client takes one `extra_body` away, so it has two of them.
        mine.chat.completions.create(**said, max_tokens=9000, extra_body={"extra_body": google})
    expected = [request.body for request in asked]
    chosen = [
        (OPENAI, CHAT, "m effort=low max_tokens=90", None),
        (OPENAI, RESPONSES, "m effort=low max_tokens=90", None),
        (ANTHROPIC, CLAUDE, "m effort=low thinking_tokens=2000 max_tokens=4000", None),
        (GOOGLE, CHAT, "m thinking_tokens=1500", 9000),
    ]
    for (host, path, choice, limit), wanted in zip(chosen, expected, strict=True):
        words = wanted.pop("input" if path == RESPONSES else "messages")
        key = "max_output_tokens" if path == RESPONSES else "max_tokens"
        assert words == MESSAGES
        assert sent(monkeypatch, host, path, choice, **{key: limit}) == wanted


@pytest.mark.slow
def test_a_search_of_efforts_asks_and_pays_for_each(upstream):
    """Only an effort helps the cheap LLM; the endpoint alone knows of it."""

    def answer(request: dict) -> Say:
        is_right = request["model"] == "large" or request["reasoning_effort"] == "high"
        return Say("fine" if is_right else "who knows?")

    def app(question: str) -> str:
        body = {"model": "scope/planner", "messages": [{"role": "user", "content": question}]}
        got = post(f"{current.base_url()}{CHAT}", body)
        return got.json()["choices"][0]["message"]["content"]

    upstream.answer = answer
    with serving(upstream.url) as endpoint:
        result = st.select(
            app,
            dataset=[(f"how is {number}?", "fine") for number in range(12)],
            models={"planner": {"llm": ["small", "large"], "effort": ["low", "high"]}},
            reference={"planner": "large effort=high"},
            metric=lambda expected, output: expected == output,
            max_quality_loss=0.1,
            budget_usd=1,
            endpoint=endpoint,
            progress=False,
        )
        bill = endpoint.ledger.cost_usd
    assert result.choice == {"planner": "small effort=high"}
    assert result.choice["planner"].effort == "high"
    usd = sum(upstream.usd_by_tag().values())
    assert (result.bill.total_usd, bill) == (pytest.approx(usd), pytest.approx(usd))
    efforts = {(one["model"], one["reasoning_effort"]) for one in upstream.requests}
    assert {("vendor/small-1", "low"), ("vendor/small-1", "high"), ("large", "high")} <= efforts
    prices = str(result.bill).splitlines()[-2:]
    assert [line.partition(":")[0] for line in prices] == ["small", "large"]


def test_the_factor_wins_over_price_list_and_extra_body(monkeypatch):
    own = PriceList({"m": LLMInfo("m", 1.0, 4.0, model="vendor/m", reasoning_effort="high",
                                  max_tokens_key="max_completion_tokens")})  # fmt: skip
    more = {"extra_body": {"temperature": 1, "service_tier": "flex"}}
    with behind(monkeypatch, OPENAI, own, **more) as (endpoint, asked):
        chosen = {"planner": "m effort=low max_tokens=90 temperature=0.2", "solver": "m"}
        with endpoint.query(chosen) as query:
            for module in chosen:
                assert post(query.base_url + CHAT, body_of(CHAT, module)).status == 200
    common = {"model": "vendor/m", "messages": MESSAGES, "service_tier": "flex"}
    assert [request.body for request in asked] == [
        common | {"reasoning_effort": "low", "max_completion_tokens": 90, "temperature": 0.2},
        common | {"reasoning_effort": "high", "max_completion_tokens": 32, "temperature": 1},
    ]


def test_counting_tokens_takes_no_factors(monkeypatch):
    """Its bodies know neither temperature nor limits, and prompts do not get longer."""
    with behind(monkeypatch, ANTHROPIC) as (endpoint, asked):
        with endpoint.query({"planner": "m temperature=0.2 thinking_tokens=0"}) as query:
            body = {"model": "scope/planner", "messages": MESSAGES}
            assert post(f"{query.base_url}/messages/count_tokens", body).status == 200
        assert asked[0].body == {"model": "m", "messages": MESSAGES}


@pytest.mark.parametrize("path", PATHS)
def test_bills_have_the_price_of_the_llm_and_the_name_of_the_choice(upstream, path):
    choice = LLM("small", effort="low", prompt="v1")
    with serving(upstream.url) as endpoint:
        with endpoint.query({"planner": choice, "solver": "small"}) as query:
            for module in ("planner", "solver"):
                assert post(query.base_url + path, body_of(path, module)).status == 200
        bills = query.ledger.by_llm()
        assert bills["planner", "small effort=low prompt=v1"] == bills["solver", "small"]
        assert bills["solver", "small"].cost_usd > 0
        (served, _) = upstream.served
        assert served.model == "vendor/small-1"
        text = post(f"{endpoint.url}/metrics", b"", method="GET").body.decode()
        assert 'calls_total{module="planner",llm="small effort=low prompt=v1"} 1' in text


def test_estimates_have_the_limit_of_the_choice(upstream):
    upstream.answer = lambda _: Say(tells_usage=False)
    with serving(upstream.url) as endpoint:
        with endpoint.query({"planner": "medium max_tokens=5000"}) as query:
            post(query.base_url + CHAT, body_of(CHAT))
        assert query.ledger.by_module()["planner"].completion_tokens == 5000


def test_a_retired_llm_is_down_with_every_effort(tmp_path):
    """The files of a choice hold names; the next configuration has another LLM, not an effort."""

    def answer(request: dict) -> object:
        return Status(410) if request["model"] == "medium" else Say()

    low, high, other = ({"planner": name} for name in (
        LLM("medium", effort="low"), "medium effort=high", "large effort=low"))  # fmt: skip
    facts = {"fallbacks": [{"models": high}, {"models": other}]}
    for name in ("models.json", "models.yaml"):
        save_models(tmp_path / name, low, facts)
        chosen, *fallbacks = load_chain(tmp_path / name)
        assert [chosen, *fallbacks] == [low, high, other]
        with (
            FakeUpstream(answer) as upstream,
            serving(upstream.url, chosen=chosen, fallbacks=fallbacks) as endpoint,
        ):
            got = post(f"{endpoint.url}/v1{CHAT}", body_of(CHAT))
            assert got.status == 200
            asked = [(one["model"], one["reasoning_effort"]) for one in upstream.requests]
            assert asked == [("medium", "low"), ("large", "low")]
            assert endpoint.chain.active == 2
            (moved,) = endpoint.ledger.fallbacks()
            assert moved == ("planner", "medium effort=low", "410")


def test_an_effort_that_works_again_is_an_llm_that_works():
    chain = Chain([{"a": "x effort=low"}, {"a": "y"}])
    chain.fail("a", "x effort=high")
    assert chain.active == 1
    assert chain.judge("a", "x", Answer(200, {}, b"{}")) is None
    assert chain.active == 0


def test_a_selection_is_refused_before_it_asks(upstream):
    with (
        serving(upstream.url) as endpoint,
        pytest.raises(InputError, match="max_tokens=0 must be a whole number above 0"),
    ):
        st.select(
            str.upper,
            dataset=[("how?", "fine")],
            models={"planner": product(llm=["small", "large"], max_tokens=[500, 0])},
            reference={"planner": "large max_tokens=500"},
            metric=lambda expected, output: expected == output,
            max_quality_loss=0.1,
            budget_usd=1,
            endpoint=endpoint,
        )
    assert upstream.requests == []


@pytest.mark.parametrize("batch", [False, True])
def test_a_choice_costs_what_its_llm_costs(batch):
    own = {
        "mine": LLMInfo("mine", 1.0, 2.0, batch_factor=0.5),
        "mine effort=high": LLMInfo("mine effort=high", 3.0, 4.0, batch_factor=0.5),
        "box": LLMInfo("box", 0.0, 0.0, gpu_hour_usd=3.6),
    }
    found = PriceList(own, batch=batch)
    factor = 0.5 if batch else 1.0
    assert found.usd_per_mtok("mine effort=low") == (1.0 * factor, 2.0 * factor)
    assert found.usd_per_mtok("mine effort=high") == (3.0 * factor, 4.0 * factor)
    for bare in ("gpt-4o-mini", "openai/gpt-4o-mini"):
        name = f"{bare} effort=low prompt=v1"
        assert found.usd_per_mtok(name) == found.usd_per_mtok(bare)
        assert found.describe([name]) == {name: found.describe([bare])[bare]}
    assert found.is_timed("box prompt=v1")
    assert not found.is_timed("mine prompt=v1")
    with pytest.raises(InputError, match="price is known for 'nobody';") as error:
        found.check(["mine effort=low", "nobody effort=low", "nobody effort=high"])
    assert "effort" not in str(error.value)
    if not batch:
        assert found.usd_per_mtok("vendor/any:free effort=low") == (0.0, 0.0)


def test_a_bill_tells_the_price_of_an_llm_once():
    own = {"a": LLMInfo("a", 1.0, 2.0), "b": LLMInfo("b", 1.0, 2.0)}
    own["b effort=high"] = LLMInfo("b effort=high", 3.0, 4.0)
    names = ["a effort=low", "a effort=high", "b effort=low", "b effort=high"]
    _, *prices = str(Bill(prices=PriceList(own).describe(names))).splitlines()
    assert [line.partition(" (")[0] for line in prices] == [
        "a: 1 in, 2 out",
        "b effort=low: 1 in, 2 out",
        "b effort=high: 3 in, 4 out",
    ]


def test_live_systems_set_effort_temperature_and_limit(tmp_path):
    names = ["small", "small effort=low", "small effort=high temperature=0.5 max_tokens=50"]

    async def ask_all(server: FakeEndpoint) -> None:
        store = ResponseStore(tmp_path / "replies.sqlite", OpenAIClient(LLMS, server.url, None))
        said = (Message("user", "how are you?"),)
        for name in [*names, names[1]]:  # the last is stored
            await store.complete(ChatCall(name, said, max_tokens=20))
        for name in ("small prompt=v1", "small thinking_tokens=2000"):
            with pytest.raises(InputError, match=r"leave out (prompt|thinking_tokens)"):
                await store.complete(ChatCall(name, said, max_tokens=20))
        await store.close()

    with FakeEndpoint() as server:
        asyncio.run(ask_all(server))
    kept = "model", "max_tokens", "temperature", "reasoning_effort"
    assert [[one.get(key) for key in kept] for one in server.requests] == [
        ["vendor/small-1", 20, 0.0, None],
        ["vendor/small-1", 20, 0.0, "low"],
        ["vendor/small-1", 50, 0.5, "high"],
    ]
