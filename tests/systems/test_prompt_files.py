"""Prompt files: their form, that each is used, and that each fits its module."""

from importlib.resources import files

import pytest
from fake_client import FakeClient, run
from test_din_sql import QUERY as SQL_QUERY
from test_din_sql import REPLIES as SQL_REPLIES
from test_unidm import DI_QUERY, DT_QUERY, DT_REPLIES, ER_QUERY

from scope_torch.errors import InputError
from scope_torch.llm.chat import Message
from scope_torch.systems import prompt_files
from scope_torch.systems.din_sql import din_sql
from scope_torch.systems.prompt_files import PROMPTINGS, fingerprint, one_call, render
from scope_torch.systems.unidm import data_imputation, data_transformation, entity_resolution

ROOT = files("scope_torch.systems") / "prompts"
FILES = sorted(
    f"{folder.name}/{file.name.removesuffix('.txt')}"
    for folder in ROOT.iterdir()
    if folder.is_dir()
    for file in folder.iterdir()
)


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A folder of prompts in place of the packaged one."""
    monkeypatch.setattr(prompt_files, "_root", lambda: tmp_path)
    prompt_files._messages.cache_clear()
    (tmp_path / "s").mkdir()
    yield tmp_path / "s"
    prompt_files._messages.cache_clear()


def run_all(prompting):
    """Runs every system so that each of its prompts is sent."""
    yes = dict.fromkeys(("parse", "parse_a", "parse_b", "match", "cloze", "answer"), "yes")
    run(data_transformation(), DT_QUERY, FakeClient(DT_REPLIES), prompting)
    run(data_imputation(), DI_QUERY, FakeClient(yes), prompting)
    run(entity_resolution(), ER_QUERY, FakeClient(yes), prompting)
    run(entity_resolution("parse_cloze_answer"), ER_QUERY, FakeClient(yes), prompting)
    for label in ("EASY", "NON-NESTED", "NESTED"):
        replies = SQL_REPLIES | {"classification": f"Label: {label}"}
        run(din_sql(), SQL_QUERY, FakeClient(replies), prompting)


def test_every_file_is_sent_by_a_module_that_gives_all_it_names(monkeypatch):
    """`render` raises if a value is missing; here it renders every file."""
    sent = set()
    read = prompt_files._messages

    def recording(path, prompting):
        few_shot = f"{path}.few_shot"
        sent.add(few_shot if prompting == "few_shot" and few_shot in FILES else path)
        return read(path, prompting)

    monkeypatch.setattr(prompt_files, "_messages", recording)
    for prompting in PROMPTINGS:
        run_all(prompting)
    assert sorted(sent) == FILES


@pytest.mark.parametrize("name", FILES)
def test_messages_alternate_and_are_not_empty(name):
    path, few_shot = name.removesuffix(".few_shot"), name.endswith(".few_shot")
    messages = prompt_files._messages(path, "few_shot" if few_shot else "chat")
    roles = [role for role, _ in messages]
    turns = (len(roles) - 2) // 2
    assert roles == ["system", *["user", "assistant"] * turns, "user"]
    assert all(text for _, text in messages)
    if few_shot:
        assert turns >= 1
        plain = prompt_files._messages(path, "chat")
        assert messages[-1] == plain[-1]


@pytest.mark.parametrize("name", [name for name in FILES if name.startswith("unidm")])
def test_prompts_are_short(name):
    """Without data, below 100 tokens plain and 200 with examples, at 4 characters a token."""
    path, few_shot = name.removesuffix(".few_shot"), name.endswith(".few_shot")
    messages = prompt_files._messages(path, "few_shot" if few_shot else "chat")
    assert sum(len(text) for _, text in messages) < (800 if few_shot else 400)


def test_uni_dm_has_examples_for_every_prompt():
    plain = {name for name in FILES if name.startswith("unidm") and "few_shot" not in name}
    assert {f"{name}.few_shot" for name in plain} <= set(FILES)


def test_roles_and_values(own):
    text = "[system]\nBe brief. \n[user]  \nIt's $x or ${x}y.\n\n[assistant]\nno\n[user]\n[a] $$5"
    (own / "m.txt").write_text(text)
    assert render("s/m", {"x": "$x [user]\n[user]\n"}) == (
        Message("system", "Be brief."),
        Message("user", "It's $x [user]\n[user]\n or $x [user]\n[user]\ny."),
        Message("assistant", "no"),
        Message("user", "[a] $5"),
    )


def test_few_shot_uses_its_own_file_if_there_is_one(own):
    (own / "m.txt").write_text("[user]\nplain")
    (own / "n.txt").write_text("[user]\nplain")
    (own / "m.few_shot.txt").write_text("[user]\nexamples")
    assert render("s/m", {}, "few_shot")[0].content == "examples"
    assert render("s/m", {}, "chat")[0].content == "plain"
    assert render("s/n", {}, "few_shot")[0].content == "plain"


def test_one_call_makes_the_prompts_of_a_module(own):
    (own / "m.txt").write_text("[user]\n$x")
    assert one_call("s/m")({"x": "1"}, "chat") == [(Message("user", "1"),)]
    doubled = one_call("s/m", lambda inputs: {"x": inputs["x"] * 2})
    assert doubled({"x": "1"}, "chat") == [(Message("user", "11"),)]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[user]\n$missing", "s/m uses 'missing', which its module does not give"),
        ("[user]\nit costs $5", r"s/m: .*line 1.*write \$\$ for a dollar sign"),
        ("", "must begin with"),
        ("hello\n[user]\nx", "must begin with"),
        ("[assistant]\nx\n[user]\ny", "must begin with"),
        ("[user]\nx\n[assistant]\ny", "end with .user."),
    ],
)
def test_wrong_files_are_named(own, text, complaint):
    (own / "m.txt").write_text(text)
    with pytest.raises(InputError, match=complaint):
        render("s/m", {})


def test_a_missing_file_and_an_unknown_prompting_are_named(own):
    with pytest.raises(InputError, match=r"there is no prompt s/none.txt"):
        render("s/none", {}, "few_shot")
    with pytest.raises(InputError, match="prompting='few-shot' must be one of"):
        render("s/none", {}, "few-shot")


def test_the_fingerprint_changes_with_texts_names_and_files(own):
    (own / "m.txt").write_text("[user]\na")
    seen = [fingerprint("s"), fingerprint("s")]
    (own / "m.txt").write_text("[user]\nb")
    seen.append(fingerprint("s"))
    (own / "m.txt").rename(own / "n.txt")
    seen.append(fingerprint("s"))
    (own / "n.few_shot.txt").write_text("[user]\nb")
    seen.append(fingerprint("s"))
    (own / ".DS_Store").write_bytes(b"\xff")
    seen.append(fingerprint("s"))
    assert seen[0] == seen[1]
    assert seen[-1] == seen[-2]
    assert len(set(seen)) == 4


def test_versions_of_systems_hold_the_fingerprint_of_their_prompts():
    assert fingerprint("unidm_di") in data_imputation().version
    assert fingerprint("unidm_dt") in data_transformation().version
    assert fingerprint("unidm_er") in entity_resolution().version
    assert fingerprint("din_sql") in din_sql().version
