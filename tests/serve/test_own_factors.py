"""Factors that no request can have, such as a prompt, of an application behind an endpoint."""

import json
import sys

import pytest
from serve.fake_upstream import FakeUpstream, Say
from serve.serve_cases import post, serving

import scope_torch as st
from scope_torch.errors import InputError
from scope_torch.factors import OF_REQUESTS
from scope_torch.llm import choices as choices_module
from scope_torch.serve import current

PROMPTS = {"v1": "Answer.", "v2": "Think, then answer."}
MODELS = {"answer": {"llm": ["small", "large"], "prompt": ["v1", "v2"]}}
REFERENCE = {"answer": "large prompt=v2"}
QUESTIONS = [(f"question {number}", "fine") for number in range(12)]


def answer(request: dict) -> Say:
    """The second prompt alone helps the small one."""
    is_told = PROMPTS["v2"] in request["messages"][0]["content"]
    return Say("fine" if is_told or request["model"] == "large" else "who knows?")


@pytest.fixture
def upstream():
    with FakeUpstream(answer) as upstream:
        yield upstream


def ask(question: str, prompt: str) -> str:
    said = [{"role": "user", "content": f"{PROMPTS[prompt]} {question}"}]
    body = {"model": "scope/answer", "messages": said, "max_tokens": 9}
    got = post(f"{current.base_url()}/chat/completions", body)
    return got.json()["choices"][0]["message"]["content"]


def chosen(upstream, app):
    with serving(upstream.url) as endpoint:
        return st.select(
            app, models=MODELS, dataset=QUESTIONS, metric=lambda wanted, said: wanted == said,
            reference=REFERENCE, endpoint=endpoint, max_quality_loss=0.1, budget_usd=1.0,
        )  # fmt: skip


@pytest.mark.slow
def test_an_application_of_one_argument_reads_its_prompt(upstream, caplog):
    result = chosen(upstream, lambda question: ask(question, current.models()["answer"].prompt))
    assert result.choice == {"answer": "small prompt=v2"}
    assert "has not read" not in caplog.text


@pytest.mark.slow
def test_an_application_that_reads_no_prompt_is_told_so_once(upstream, caplog):
    chosen(upstream, lambda question: ask(question, "v2"))
    told = [one.getMessage() for one in caplog.records if "has not read" in one.getMessage()]
    (said,) = told
    assert said.startswith("the app has not read its prompt, so choices that differ only there are")
    assert "scope_torch.serve.current.models()" in said


@pytest.mark.slow
def test_a_command_reads_its_prompt(upstream, tmp_path):
    program = (
        "import json, os, sys, urllib.request as u\n"
        f"prompt = {PROMPTS!r}[os.environ['SCOPE_ANSWER'].split('prompt=')[1]]\n"
        "said = [{'role': 'user', 'content': prompt + ' ' + sys.argv[1]}]\n"
        "body = {'model': 'scope/answer', 'messages': said, 'max_tokens': 9}\n"
        "r = u.Request(os.environ['OPENAI_BASE_URL'] + '/chat/completions',\n"
        "    json.dumps(body).encode(), {'Content-Type': 'application/json'})\n"
        "print(json.load(u.urlopen(r))['choices'][0]['message']['content'])\n"
    )
    (tmp_path / "app.py").write_text(program)
    result = chosen(upstream, [sys.executable, str(tmp_path / "app.py"), "{input}"])
    assert result.choice == {"answer": "small prompt=v2"}


def test_a_factor_of_requests_is_one_whose_values_are_checked():
    assert choices_module._KINDS.keys() == OF_REQUESTS


def test_an_endpoint_refuses_fallbacks_with_another_prompt(upstream):
    fallbacks = [{"answer": "small prompt=v1"}]
    with pytest.raises(InputError, match=r"'small prompt=v1' of answer has not the factors of"):
        serving(upstream.url, chosen={"answer": "large prompt=v2"}, fallbacks=fallbacks).__enter__()
    fallbacks = [{"answer": "small prompt=v2 effort=low"}]
    with serving(upstream.url, chosen={"answer": "large prompt=v2"}, fallbacks=fallbacks):
        pass


def test_what_a_choice_says_is_read_where_the_query_is(upstream):
    with serving(upstream.url) as endpoint, endpoint.query({"answer": "small prompt=v1"}) as query:
        models = current.models()
        assert (models["answer"].llm, models["answer"].prompt) == ("small", "v1")
        assert query.env["SCOPE_ANSWER"] == "small prompt=v1"
        json.dumps(models)
    with pytest.raises(InputError, match="no query is in flight here"):
        current.models()


def test_a_variable_that_two_modules_share_tells_no_choice_of_the_other(upstream):
    """A command was told the prompt of the last module of this name, also for the first."""
    both = {"re-rank": "small prompt=v1", "re_rank": "small prompt=v2", "solve": "small"}
    with serving(upstream.url) as endpoint:
        with endpoint.query(both) as query:
            told = {name for name in query.env if name.startswith("SCOPE_")}
            assert told == {"SCOPE_SOLVE"}
        with endpoint.query(both | {"re_rank": "small prompt=v1"}) as query:
            assert query.env["SCOPE_RE_RANK"] == "small prompt=v1"
