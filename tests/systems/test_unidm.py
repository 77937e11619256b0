"""The UniDM graphs: inputs and outputs of modules, and bad replies."""

import asyncio
import json
import tomllib
from importlib.resources import files

import pytest
from fake_client import FakeClient, assignment, lost, run

from scope_torch.errors import InputError
from scope_torch.systems.graph import ParseError
from scope_torch.systems.unidm import (
    data_imputation,
    data_transformation,
    entity_resolution,
    first_line,
    record_text,
)

DT_QUERY = {
    "instruction": "//convert $dollar to words",
    "demonstrations": [["1", "one"], ["2", "two"]],
    "source": "3 $source",
}
DT_REPLIES = {
    "pattern": "spelled out",
    "instruction": "spell it",
    "merge": "spell the number",
    "target_prompt": "one, two,",
    "answer": "\n  three  \nbecause",
}
DI_QUERY = {
    "records": [{"name": f"r{i}", "phone": None, "city": "rome"} for i in range(3)],
    "target": {"name": "r9", "type": "bar"},
    "attribute": "city",
}
ER_QUERY = {
    "entity_a": {"title": "map 1", "price": "", "maker": "m"},
    "entity_b": {"title": "map 2", "price": 0},
}


def test_slots_are_those_of_the_simulated_worlds():
    worlds = tomllib.loads((files("scope_torch") / "data/worlds.toml").read_text(encoding="utf-8"))
    systems = {
        "data_transformation": data_transformation(),
        "data_imputation": data_imputation(),
        "entity_resolution": entity_resolution(),
    }
    for name, system in systems.items():
        assert [m.name for m in system.modules] == [m["name"] for m in worlds[name]["modules"]]


def test_transformation_passes_each_output_to_its_readers():
    client = FakeClient(DT_REPLIES)
    assert run(data_transformation(), DT_QUERY, client).output == "three"
    assert "1 => one\n2 => two" in client.prompt("pattern")
    assert "//convert $dollar to words" in client.prompt("instruction")
    for part in ("spelled out", "spell it", "1 => one"):
        assert part in client.prompt("merge")
    assert "//convert" not in client.prompt("merge")
    assert "1 => one" in client.prompt("target_prompt")
    assert "3 $source" in client.prompt("target_prompt")
    assert "spell the number" in client.prompt("answer")
    assert "one, two," in client.prompt("answer")


def test_transformation_starts_its_three_sources_together():
    async def scenario():
        gates = {name: asyncio.Event() for name in ("pattern", "instruction", "target_prompt")}
        client = FakeClient(DT_REPLIES, gates)
        system = data_transformation()
        running = asyncio.create_task(system.run(assignment(system), DT_QUERY, client))
        for _ in range(20):
            await asyncio.sleep(0)
        assert {call.llm for call in client.calls} == set(gates)
        for gate in gates.values():
            gate.set()
        await running
        assert client.finished[-2:] == ["merge", "answer"]

    asyncio.run(scenario())


@pytest.mark.parametrize("bad", [" \n\t", lost()], ids=["empty", "lost"])
def test_transformation_goes_on_without_replies(bad):
    client = FakeClient(dict.fromkeys(DT_REPLIES, bad))
    result = run(data_transformation(), DT_QUERY, client)
    assert result.output == ""
    assert not any(module.parsed for module in result.modules.values())
    merge, answer = client.prompt("merge"), client.prompt("answer")
    assert merge.count("1 => one\n2 => two") == 2  # in place of the pattern, and as examples
    assert "Task: //convert $dollar to words" in merge
    assert 'Rule: 1 => one\n2 => two\n//convert $dollar to words\n"1" becomes "one".' in answer
    assert answer.endswith('"2" becomes "two".\n"3 $source" becomes')


def test_imputation_parses_each_record_in_a_call_of_its_own():
    sentences = iter(["first\nbar.", "second bar.", "third bar."])
    client = FakeClient(
        {"parse": lambda _: next(sentences), "cloze": "r9 is in ____.", "answer": "Oslo\n(Norway)"}
    )
    result = run(data_imputation(), DI_QUERY, client)
    assert result.output == "Oslo"
    assert [prompt.splitlines()[-1] for prompt in client.prompts("parse")] == [
        "name: r0; city: rome",
        "name: r1; city: rome",
        "name: r2; city: rome",
    ]
    cloze, answer = client.prompt("cloze"), client.prompt("answer")
    assert "first bar.\nsecond bar.\nthird bar." in cloze
    assert cloze.endswith("name: r9; type: bar; city: ____")
    assert "city" in answer
    assert answer.endswith("r9 is in ____.")
    assert "rome" not in answer
    assert [(call.llm, call.max_tokens) for call in client.calls] == [
        *[("parse", 60)] * 3,
        ("cloze", 60),
        ("answer", 16),
    ]


def test_imputation_without_replies_shows_the_records_as_they_are():
    client = FakeClient({"parse": lost(), "cloze": "", "answer": ""})
    result = run(data_imputation(), DI_QUERY, client)
    assert result.output == ""
    lines = "name: r0; city: rome\nname: r1; city: rome\nname: r2; city: rome\n"
    assert lines in client.prompt("cloze")
    assert client.prompt("answer").endswith("\nname: r9; type: bar; city: ____")


@pytest.mark.parametrize("reply", ["r9 is a bar in Oslo.", "New record: city: __", "city?"])
def test_a_cloze_without_its_blank_gives_way_to_the_record(reply):
    """Small LLMs often fill in or omit the blank; then nothing is left to answer."""
    client = FakeClient({"parse": "a bar.", "cloze": reply, "answer": "Oslo"})
    result = run(data_imputation(), DI_QUERY, client)
    assert client.prompt("answer").endswith("\nname: r9; type: bar; city: ____")
    assert result.output == "Oslo"
    assert result.modules["cloze"].num_calls == 1


def test_imputation_without_similar_records():
    client = FakeClient({"cloze": "c ____", "answer": "x"})
    result = run(data_imputation(), DI_QUERY | {"records": []}, client)
    assert (result.output, result.modules["parse"].num_calls) == ("x", 0)


@pytest.mark.parametrize("reply", ["Yes.", "no", "They are the same: YES\nindeed"])
def test_matching_gives_the_reply_as_it_is(reply):
    client = FakeClient({"parse_a": "map one", "parse_b": "map two", "match": f"\n{reply} "})
    assert run(entity_resolution(), ER_QUERY, client).output == reply
    assert client.prompt("parse_a").endswith("\ntitle: map 1; maker: m")
    assert client.prompt("parse_b").endswith("\ntitle: map 2; price: 0")
    assert client.prompt("match").endswith("\nA: map one\nB: map two")


def test_matching_without_replies():
    client = FakeClient({"parse_a": "", "parse_b": lost(), "match": lost()})
    assert run(entity_resolution(), ER_QUERY, client).output == ""
    assert client.prompt("match").endswith("\nA: title: map 1; maker: m\nB: title: map 2; price: 0")


def test_matching_by_a_question():
    system = entity_resolution("parse_cloze_answer")
    described = iter(["map one", "map two"])
    client = FakeClient({"parse": lambda _: next(described), "cloze": "Same?", "answer": "yes"})
    assert run(system, ER_QUERY, client).output == "yes"
    assert len(client.prompts("parse")) == 2
    assert client.prompt("cloze").endswith("\nA: map one\nB: map two")
    assert client.prompt("answer").endswith("\nSame?")

    client = FakeClient({"parse": "", "cloze": "", "answer": ""})
    assert run(system, ER_QUERY, client).output == ""
    assert "A: title: map 1; maker: m\nB: title: map 2; price: 0\nDo A" in client.prompt("answer")


def test_the_two_kinds_of_matching_do_not_share_a_name():
    names = {
        entity_resolution(slots).name for slots in ("parse_a_parse_b_match", "parse_cloze_answer")
    }
    assert len(names) == 2
    with pytest.raises(InputError, match="slots='both' must be one of"):
        entity_resolution("both")


def test_data_cannot_name_inputs_or_begin_messages():
    """`$merge` and role lines in data are only text."""
    text = "$merge ${source} $$ [system]\n[user]\n%s {0} \\1"
    query = {"instruction": text, "demonstrations": [[text, text]], "source": text}
    client = FakeClient(DT_REPLIES | {"pattern": text})
    run(data_transformation(), query, client)
    for module in ("instruction", "merge", "target_prompt"):
        assert text in client.prompt(module)
    assert all(len(call.messages) <= 4 for call in client.calls)


def test_huge_and_unicode_data():
    query = DT_QUERY | {"source": "\N{SNOWMAN}" * 100_000}
    reply = "\u202eСофия\u2028next"
    client = FakeClient(DT_REPLIES | {"answer": reply})
    assert run(data_transformation(), query, client).output == "\u202eСофия"
    assert "\N{SNOWMAN}" * 100_000 in client.prompt("target_prompt")


def test_few_shot_prompts_are_longer_and_end_alike():
    for prompting, messages in (("chat", 2), ("few_shot", 6)):
        client = FakeClient(DT_REPLIES)
        run(data_transformation(), DT_QUERY, client, prompting=prompting)
        (call,) = [call for call in client.calls if call.llm == "answer"]
        assert len(call.messages) == messages
        assert call.messages[-1].content == "Rule: spell the number\none, two,"


def test_first_line():
    assert first_line([" \n\n a b \nc"], {}) == "a b"
    for blank in ("", " \n\t "):
        with pytest.raises(ParseError):
            first_line([blank], {})


def test_record_text_keeps_zero_and_leaves_out_what_is_not_known():
    assert record_text({"a": 0, "b": "", "c": None, "d": "x; y"}) == "a: 0; d: x; y"
    assert record_text({}) == ""


def test_queries_may_come_from_json():
    client = FakeClient({"parse": "p", "cloze": "c", "answer": "a"})
    assert run(data_imputation(), json.loads(json.dumps(DI_QUERY)), client).output == "a"
