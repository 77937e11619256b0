"""Order, parallelism, bills and failures of module graphs."""

import asyncio
import re
from pathlib import Path

import pytest
from fake_client import FakeClient, assignment, completion, lost, run

from scope_torch.errors import InputError
from scope_torch.llm.chat import LLMError, Message
from scope_torch.systems.graph import CompoundSystem, Module, ParseError


def module(name, *inputs, calls=1, max_tokens=9):
    """A module that sends its inputs; replies come in capitals; "bad" does not parse."""

    def parse(replies, _):
        if "bad" in replies:
            raise ParseError("bad")
        return "+".join(replies).upper()

    return Module(
        name=name,
        inputs=inputs,
        prompts=lambda given, how: [
            (Message("user", f"{name}{i}({','.join(map(str, given.values()))}){how}"),)
            for i in range(calls)
        ],
        parse=parse,
        fallback=lambda _: f"fallback of {name}",
        max_tokens=max_tokens,
    )


DIAMOND = CompoundSystem(
    "diamond",
    (module("a", "x"), module("b", "x"), module("c", "a", "b"), module("d", "c", "x")),
)
REPLIES = {name: f"from {name}" for name in "abcd"}


async def until(condition):
    """Lets other tasks run until the condition holds; fails if they all wait before that."""
    for _ in range(100):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never happened")


def test_outputs_flow_along_the_edges_and_the_last_is_the_output():
    client = FakeClient(REPLIES)
    result = run(DIAMOND, {"x": "query"}, client, prompting="few_shot")
    assert client.prompt("a") == "a0(query)few_shot"
    assert client.prompt("c") == "c0(FROM A,FROM B)few_shot"
    assert client.prompt("d") == "d0(FROM C,query)few_shot"
    assert result.output == "FROM D"
    assert list(result.modules) == ["a", "b", "c", "d"]


def test_calls_carry_llm_limit_and_replicate():
    client = FakeClient({"one": "r"})
    system = CompoundSystem("s", (module("one", "x", max_tokens=37),))
    asyncio.run(system.run(assignment(system), {"x": 1}, client, replicate=4))
    (call,) = client.calls
    assert (call.llm, call.max_tokens, call.replicate, call.temperature) == ("one", 37, 4, 0.0)
    assert call.repeat_of == f"one={assignment(system)['one'].name}"


def test_independent_modules_are_in_flight_together_and_readers_wait():
    async def scenario():
        gates = {"a": asyncio.Event(), "b": asyncio.Event()}
        client = FakeClient(REPLIES, gates)
        running = asyncio.create_task(DIAMOND.run(assignment(DIAMOND), {"x": 1}, client))
        await until(lambda: len(client.calls) == 2)
        assert {call.llm for call in client.calls} == {"a", "b"}
        gates["b"].set()
        await until(lambda: client.finished == ["b"])
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(client.calls) == 2, "c must wait for a too"
        gates["a"].set()
        await running
        assert client.finished == ["b", "a", "c", "d"]

    asyncio.run(scenario())


def test_calls_of_a_module_are_in_flight_together():
    async def scenario():
        gate = asyncio.Event()
        system = CompoundSystem("s", (module("one", "x", calls=3),))
        client = FakeClient({"one": "r"}, {"one": gate})
        running = asyncio.create_task(system.run(assignment(system), {"x": 1}, client))
        await until(lambda: len(client.calls) == 3)
        gate.set()
        assert (await running).output == "R+R+R"

    asyncio.run(scenario())


def test_bills_add_up_by_module():
    system = CompoundSystem("s", (module("one", "x", calls=3), module("two", "one")))
    client = FakeClient(
        {
            "one": completion("r", cost_usd=0.25, prompt_tokens=100, completion_tokens=7),
            "two": completion("r", cost_usd=0.5, prompt_tokens=11, completion_tokens=5),
        }
    )
    result = run(system, {"x": 1}, client)
    one, two = result.modules["one"], result.modules["two"]
    assert (one.cost_usd, one.prompt_tokens, one.completion_tokens) == (0.75, 300, 21)
    assert (one.num_calls, one.num_failed, one.parsed) == (3, 0, True)
    assert (two.cost_usd, two.prompt_tokens, two.completion_tokens) == (0.5, 11, 5)
    assert result.cost_usd == 1.25


def test_latency_is_the_critical_path():
    seconds = {"a": 5.0, "b": 2.0, "c": 1.0, "d": 0.5}
    client = FakeClient({name: completion("r", latency_s=s) for name, s in seconds.items()})
    assert run(DIAMOND, {"x": 1}, client).latency_s == 6.5

    latencies = iter([1.0, 4.0, 2.0])
    system = CompoundSystem("s", (module("one", "x", calls=3),))
    client = FakeClient({"one": lambda _: completion("r", latency_s=next(latencies))})
    result = run(system, {"x": 1}, client)
    assert result.latency_s == result.modules["one"].latency_s == 4.0


def test_a_module_off_the_path_to_the_output_adds_cost_but_no_latency():
    system = CompoundSystem("s", (module("aside", "x"), module("last", "x")))
    client = FakeClient({"aside": completion("r", latency_s=9.0), "last": "r"})
    result = run(system, {"x": 1}, client)
    assert (result.latency_s, result.cost_usd) == (1.0, 0.002)


def test_what_does_not_parse_is_billed_and_replaced():
    client = FakeClient({**REPLIES, "a": "bad"})
    result = run(DIAMOND, {"x": 1}, client)
    assert client.prompt("c").startswith("c0(fallback of a,FROM B)")
    assert [run.parsed for run in result.modules.values()] == [False, True, True, True]
    assert result.modules["a"].cost_usd == 0.001


def test_a_call_without_reply_is_billed_and_its_module_replaced():
    replies = iter(["fine", lost(cost_usd=0.5), "fine"])
    system = CompoundSystem("s", (module("one", "x", calls=3),))
    client = FakeClient({"one": lambda _: next(replies)})
    result = run(system, {"x": 1}, client)
    one = result.modules["one"]
    assert result.output == "fallback of one"
    assert one.cost_usd == pytest.approx(0.502)
    assert (one.num_calls, one.num_failed, one.parsed) == (3, 1, False)
    assert (one.prompt_tokens, one.latency_s) == (20, 1.0)


def test_the_seconds_of_a_call_without_reply_count():
    """Else an LLM whose calls time out would be the fastest one."""
    timed_out = LLMError("no reply within 300 s", latency_s=300.0)
    result = run(DIAMOND, {"x": 1}, FakeClient({**REPLIES, "a": timed_out}))
    assert result.modules["a"].latency_s == 300.0
    assert result.latency_s == 302.0


def test_a_fatal_error_is_raised_after_what_is_in_flight_has_ended():
    async def scenario():
        gate = asyncio.Event()
        fatal = LLMError("no key", fatal=True)
        client = FakeClient({**REPLIES, "a": fatal}, {"b": gate})
        running = asyncio.create_task(DIAMOND.run(assignment(DIAMOND), {"x": 1}, client))
        await until(lambda: client.finished == ["a"])
        for _ in range(20):
            await asyncio.sleep(0)
        assert not running.done()
        gate.set()
        with pytest.raises(LLMError, match="no key"):
            await running
        assert client.finished == ["a", "b"], "c and d read a; they must not be paid for"

    asyncio.run(scenario())


def test_other_errors_are_not_taken_for_lost_calls():
    with pytest.raises(ZeroDivisionError):
        run(DIAMOND, {"x": 1}, FakeClient({**REPLIES, "b": ZeroDivisionError()}))


def test_cancelling_a_run_cancels_its_calls():
    async def scenario():
        gates = {"a": asyncio.Event(), "b": asyncio.Event()}
        client = FakeClient(REPLIES, gates)
        running = asyncio.create_task(DIAMOND.run(assignment(DIAMOND), {"x": 1}, client))
        await until(lambda: len(client.calls) == 2)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert client.finished == []

    asyncio.run(scenario())


def test_a_module_may_read_the_field_of_its_own_name():
    system = CompoundSystem("s", (module("task", "task"), module("last", "task")))
    client = FakeClient({"task": "reply", "last": "r"})
    run(system, {"task": "field"}, client)
    assert client.prompt("task") == "task0(field)chat"
    assert client.prompt("last") == "last0(REPLY)chat"


@pytest.mark.parametrize(
    ("modules", "named"),
    [
        ((), "different names"),
        ((module("a", "x"), module("a", "x")), "different names"),
        ((module("a", "b"), module("b", "x")), "'a' reads .'b'."),
        ((module("a", "b"), module("b", "a")), "'a' reads .'b'."),
        ((module("a", "x"), module("b", "c", "a"), module("c", "b")), "'b' reads .'c'."),
    ],
    ids=["empty", "repeated", "later", "cycle", "longer cycle"],
)
def test_wrong_graphs(modules, named):
    with pytest.raises(InputError, match=named):
        CompoundSystem("s", modules)


@pytest.mark.parametrize("reads", ["missing", "late"], ids=["unknown field", "itself"])
def test_a_field_that_the_query_lacks_is_named_before_a_call_is_paid_for(reads):
    system = CompoundSystem("s", (module("early", "x"), module("late", reads)))
    client = FakeClient({"early": "r", "late": "r"})
    with pytest.raises(InputError, match=f"'late' reads '{reads}'.*'x'"):
        run(system, {"x": 1}, client)
    assert client.calls == []


def test_a_module_without_llm_is_named_before_a_call_is_paid_for():
    client = FakeClient(REPLIES)
    llms = assignment(DIAMOND)
    del llms["c"]
    with pytest.raises(InputError, match="no LLM for module 'c'"):
        asyncio.run(DIAMOND.run(llms, {"x": 1}, client))
    assert client.calls == []


def test_huge_and_unicode_replies_go_on_as_they_are():
    client = FakeClient({**REPLIES, "c": "naïve 東京 \N{PARTY POPPER} " * 50_000})
    run(DIAMOND, {"x": "\udcff\x00"}, client)
    assert client.prompt("d").count("東京") == 50_000
    assert "\x00" in client.prompt("d")


def test_the_example_of_the_documentation_runs(capsys):
    page = (Path(__file__).resolve().parents[2] / "docs/systems.md").read_text(encoding="utf-8")
    (graph,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(compile(graph, "systems.md", "exec"), {})
    assert capsys.readouterr().out == "42 by large 4e-05 1.0 20\n"
