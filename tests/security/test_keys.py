"""A key is in no file and no text of a search from the command line, whatever goes wrong."""

import base64
import html
import json
import logging
import sqlite3
import urllib.parse
from pathlib import Path

import pytest
from airport_llms import airport_llm, few_airports  # noqa: F401
from llm.fake_endpoint import (
    Cut,
    FakeEndpoint,
    Status,
    only_loopback,  # noqa: F401
)
from long_runs import only_long

from scope_torch.cli.build import refuse_typed_keys
from scope_torch.llm.keys import redact_logs, without_key, without_secrets

KEY = "sk-canary-7f1d90b2ce"
BEARER = base64.b64encode(f"Bearer {KEY}".encode()).decode()
IN_BASE64 = base64.b64encode(KEY.encode()).decode()
IN_A_URL = "".join(f"%{ord(char):02X}" for char in KEY)
# What all encodings of the key in base64 have in common, wherever it begins.
CORES = (IN_BASE64[:26], BEARER[11:36], base64.b64encode(f"x{KEY}".encode()).decode()[2:27])


def arguments(url: str, *more: str) -> list[str]:
    fixed = ["task=airport_city", "evaluator=live", f"llm.base_url={url}", "llm.backoff_s=0"]
    fixed += ["llm.api_key_env=CANARY_KEY", "tracking=wandb", "task.num_queries=5"]
    # absolute, because the process of wandb outlives a test and its working directory
    return [*fixed, "budget_usd=0.0002", f"output_dir='{Path.cwd() / 'outputs'}'", *more]


class Troubled:
    """Answers well so many times, then with `trouble`."""

    def __init__(self, good: int, trouble: object) -> None:
        self.good, self.trouble = good, trouble

    def __call__(self, request: dict):
        self.good -= 1
        return airport_llm(request) if self.good >= 0 else self.trouble


def nowhere(folder: Path, *texts: str) -> None:
    """The key, or the password, is neither in the texts nor in a file or its name."""
    for secret in (KEY, "hunter2", IN_A_URL, *CORES):
        assert not [text for text in texts if secret in text]
        for path in folder.rglob("*"):
            assert secret not in path.name
            if path.is_file():
                assert secret.encode() not in path.read_bytes(), path


TROUBLES = [
    Status(401, message=f"Incorrect API key provided: {KEY}"),
    Status(403, body={"error": {"message": f"{KEY} may not"}}),
    Status(404, message=f"no such model for {KEY}"),
    Status(429, message=KEY, headers={"Retry-After": "0"}),
    Status(500, body=f"<html>{KEY}".encode(), headers={"X-Echo": f"Bearer {KEY}"}),
    Status(307, headers={"Location": "http://127.0.0.1:1/"}),
    Status(200, body={"error": {"message": f"quota of {KEY}", "code": "insufficient_quota"}}),
    Status(200, body=f"{KEY} is no JSON".encode()),
    Cut(of_body=0.2),
    Status(500, body=BEARER.encode(), headers={"X-Echo": f"{IN_BASE64} {IN_A_URL}"}),
    Status(400, message=f"{BEARER} {IN_BASE64} {IN_A_URL}"),
]


FAST = (0, 4, 9)
MARKED = [
    pytest.param(trouble, marks=() if i in FAST else only_long)
    for i, trouble in enumerate(TROUBLES)
]


@pytest.mark.parametrize("trouble", MARKED)
@pytest.mark.slow
def test_a_search_that_fails_and_goes_on(cli, monkeypatch, tmp_path, caplog, trouble):
    monkeypatch.setenv("CANARY_KEY", KEY)
    monkeypatch.setenv("WANDB_SILENT", "true")
    caplog.set_level("DEBUG")
    troubled = Troubled(30, trouble)
    with FakeEndpoint(troubled, key=KEY) as endpoint:
        url = arguments(endpoint.url, "llm.max_failures_in_a_row=3", "llm.retries=1")
        status, out, err = cli(*url)
        # an answer that may have been billed uses up the budget
        assert status == 2 or trouble in TROUBLES[7:9]
        assert endpoint.headers[0]["authorization"] == f"Bearer {KEY}"
        troubled.good = 10**9
        status, *more = cli(*url)
    assert status == 0
    logged = [record for record in caplog.records if record.name.startswith("httpcore")]
    assert [record for record in logged if "response_headers" in record.getMessage()]
    nowhere(tmp_path, out, err, *more, caplog.text)
    names = {path.name for path in tmp_path.rglob("*")}
    assert {"journal.jsonl", "result.json", "responses.sqlite"} <= names
    assert [name for name in names if name.endswith(".wandb")]


def test_loggers_made_later_are_redacted(monkeypatch, caplog):
    """httpcore2 makes its own when the first client is made, LiteLLM at its first call."""
    monkeypatch.setenv("CANARY_KEY", KEY)
    monkeypatch.setenv("OTHER_CANARY", "hunter2")
    caplog.set_level("DEBUG")
    before = logging.getLogRecordFactory()
    try:
        redact_logs(("canarylib",), "CANARY_KEY")
        redact_logs(("canarylib",), "OTHER_CANARY")
        for name in ("canarylib", "canarylib2.later"):
            logging.getLogger(name).debug("headers %r of %s", {"X": KEY}, "hunter2")
        logging.getLogger("canarylibrary").debug("%s", "left as it is: hunter2")
        assert logging.makeLogRecord({"name": "canarylib", "msg": "sent on"}).msg == "sent on"
    finally:
        logging.setLogRecordFactory(before)
    *redacted, other = [record.getMessage() for record in caplog.records]
    assert redacted == ["headers {'X': '***'} of ***"] * 2
    assert other == "left as it is: hunter2"


@pytest.mark.slow
def test_a_bug_leaves_a_log_without_the_key(cli, monkeypatch, tmp_path):
    monkeypatch.setenv("CANARY_KEY", KEY)

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("scope_torch.llm.retrying.read_reply", broken)
    with FakeEndpoint(airport_llm, key=KEY) as endpoint:
        status, out, err = cli(*arguments(endpoint.url))
    assert status == 2
    assert "error.log" in err
    assert list(tmp_path.rglob("error.log"))
    nowhere(tmp_path, out, err)


@pytest.mark.slow
@pytest.mark.parametrize("variable", ["CANARY_KEY", "ENDPOINT"])
@pytest.mark.parametrize("mode", [[], ["-m"]], ids=["run", "sweep"])
def test_a_bug_that_shows_the_key_leaves_a_log_without_it(
    cli, monkeypatch, tmp_path, mode, variable
):
    """Libraries may show a header in their errors."""
    monkeypatch.setenv(variable, KEY)

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError(f"a bug with {KEY}, {BEARER} and {IN_A_URL}")

    monkeypatch.setattr("scope_torch.llm.retrying.read_reply", broken)
    with FakeEndpoint(airport_llm, key=KEY) as endpoint:
        url = arguments(endpoint.url, f"llm.api_key_env={variable}", "tracking=jsonl")
        status, out, err = cli(*mode, *url)
    assert status == 2
    (log,) = tmp_path.rglob("error.log")
    assert "RuntimeError: a bug with ***, " in err
    assert "RuntimeError: a bug with ***, " in log.read_text()
    nowhere(tmp_path, out, err)


URLS = [
    "http://user:hunter2@127.0.0.1:9/v1",
    "https://hunter2@127.0.0.1:9/v1",
    "http://127.0.0.1:9/v1?api_key=hunter2",
    "http://127.0.0.1:9/v1#hunter2",
    "user:hunter2@127.0.0.1:9/v1",
    "http://user:hunter2@[::1/v1",
    "http://user:hunter2@127.0.0.1:99999999/v1",
]


FEW = [("llm", URLS[0]), ("method.backend", URLS[1])]
REST = [(who, url) for who in ("llm", "method.backend") for url in URLS if (who, url) not in FEW]


@pytest.mark.parametrize(
    ("whose", "url"), [*FEW, *(pytest.param(*case, marks=pytest.mark.slow) for case in REST)]
)
def test_an_address_with_a_password_is_refused_and_not_shown(
    cli, monkeypatch, tmp_path, url, whose
):
    monkeypatch.setenv("CANARY_KEY", KEY)
    task = ["task=synthetic", "method=llambo", "method.backend.kind=openai"]
    if whose == "llm":
        task = ["task=airport_city", "evaluator=live", "llm.api_key_env=CANARY_KEY"]
    status, out, err = cli(*task, f"{whose}.base_url='{url}'", "tracking=wandb")
    assert status == 2
    assert "base_url" in err
    assert len(err.splitlines()) == 1
    nowhere(tmp_path, out, err)


@pytest.mark.slow
def test_the_llm_of_llambo(cli, monkeypatch, tmp_path):
    monkeypatch.setenv("CANARY_KEY", KEY)
    for trouble in (Status(401, message=KEY), Status(400, message=KEY), f"no list {KEY}"):
        with FakeEndpoint([trouble], key=KEY) as endpoint:
            backend = f"{{kind:openai,base_url:'{endpoint.url}',api_key_env:CANARY_KEY,retries:0}}"
            more = ["method.num_candidates=1", "method.num_predictions=1", "method.n_init=1"]
            few = ["task=synthetic", "task.num_queries=4", "budget_usd=0.02", "tracking=wandb"]
            status, out, err = cli(*few, "method=llambo", f"method.backend={backend}", *more)
            assert endpoint.headers[0]["authorization"] == f"Bearer {KEY}"
        assert status == (0 if isinstance(trouble, str) else 2), err
        nowhere(tmp_path, out, err)
    (transcript,) = tmp_path.rglob("transcripts/*")
    assert json.loads(transcript.read_text().splitlines()[0])["texts"] == ["no list ***"]


ODD_KEY = 'sk/canary"7f\\1d+90&b2=ce'
FORMS = {
    "as it is": ODD_KEY,
    "base64": base64.b64encode(ODD_KEY.encode()).decode(),
    "base64 for URLs": base64.urlsafe_b64encode(ODD_KEY.encode()).decode(),
    "base64 in a URL": urllib.parse.quote(base64.b64encode(ODD_KEY.encode()).decode(), safe=""),
    "URL": urllib.parse.quote(ODD_KEY, safe=""),
    "URL, but for slashes": urllib.parse.quote(ODD_KEY),
    "URL, small letters": urllib.parse.quote(ODD_KEY, safe="").lower(),
    "URL, twice": urllib.parse.quote(urllib.parse.quote(ODD_KEY, safe=""), safe=""),
    "JSON": json.dumps(ODD_KEY)[1:-1],
    "JSON in JSON": json.dumps(json.dumps(ODD_KEY))[3:-3],
    "JSON, slashes": json.dumps(ODD_KEY)[1:-1].replace("/", "\\/"),
    "JSON, numbers": "".join(f"\\u{ord(char):04x}" for char in ODD_KEY),
    "HTML": html.escape(ODD_KEY),
    "hexadecimal": ODD_KEY.encode().hex(),
    "HEXADECIMAL": ODD_KEY.encode().hex().upper(),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_key_is_found_in_every_form(form, monkeypatch):
    monkeypatch.setenv("CANARY_KEY", ODD_KEY)
    text = f"before {FORMS[form]} after"
    for clean in (without_secrets(text), without_key(text, "CANARY_KEY")):
        assert clean.startswith("before ")
        assert clean.endswith(" after")
        assert "***" in clean
        assert len(clean) < len("before *** after") + 6  # the end of base64 has bits of neither


@pytest.mark.parametrize("before", ["", "x", "xy", "xyz", "Bearer "])
@pytest.mark.parametrize("after", ["", "x", "xy", "xyz"])
def test_a_key_is_found_inside_of_base64(before, after, monkeypatch):
    monkeypatch.setenv("CANARY_KEY", KEY)
    text = base64.b64encode(f"{before}{KEY}{after}".encode()).decode()
    assert "***" in without_secrets(text)
    assert len(without_secrets(text)) <= len(text) - len(KEY)


def test_a_reply_keeps_what_is_not_the_key(monkeypatch):
    """Other variables, and short keys such as those of local servers, may be ordinary words."""
    monkeypatch.setenv("CANARY_KEY", "ollama")
    monkeypatch.setenv("PRIMARY_KEY", "a customer number")
    text = "ollama has a customer number"
    assert without_key(text, "CANARY_KEY") == without_key(text, None) == text
    assert without_secrets(text, "CANARY_KEY") == "*** has ***"


@pytest.mark.slow
def test_a_key_in_a_reply_is_not_stored(cli, monkeypatch, tmp_path, caplog):
    monkeypatch.setenv("CANARY_KEY", KEY)
    monkeypatch.setenv("WANDB_SILENT", "true")
    caplog.set_level("DEBUG")

    def echo(request: dict) -> str:
        return f"{airport_llm(request)} {KEY} {IN_BASE64} {BEARER} {IN_A_URL}"

    with FakeEndpoint(echo, key=KEY) as endpoint:
        _, out, err = cli(*arguments(endpoint.url))  # every answer is wrong, but it was paid for
    (store,) = tmp_path.rglob("responses.sqlite")
    nowhere(tmp_path, out, err, caplog.text)
    with sqlite3.connect(store) as db:
        texts = db.execute("SELECT text FROM replies").fetchall()
    db.close()
    assert texts
    assert all(text.endswith(" *** ***U= QmVhcmVyIH*** ***") for (text,) in texts)


VALUES = ["sk-canary-7f1d90b2ce", "$hunter2", "7f1d90b2ce", "hunter2 hunter2", "gsk_hunter2"]


@pytest.mark.parametrize(
    ("whose", "value"),
    [*(("llm", value) for value in VALUES), *(("method.backend", value) for value in VALUES[:2])],
)
def test_a_key_in_place_of_its_variable_is_refused_and_not_shown(
    cli, tmp_path, caplog, whose, value
):
    task = ["task=synthetic", "method=llambo", "method.backend.kind=openai", "budget_usd=0.01"]
    if whose == "llm":
        task = ["task=airport_city", "evaluator=live", "llm.base_url=http://127.0.0.1:1/v1"]
    status, out, err = cli(*task, f"{whose}.api_key_env='{value}'", "tracking=wandb")
    assert status == 2
    assert "api_key_env" in err
    assert len(err.splitlines()) == 1
    assert value not in out + err + caplog.text
    nowhere(tmp_path, out, err, caplog.text)
    assert not [path for path in tmp_path.rglob("*") if value.encode() in content(path)]


TYPED = [
    "llm.api_key_env=hunter2-{}",
    "llm.api_key_env='hunter2 \"{}'",
    "llm.api_key_env=OPENAI_API_KEY,hunter2-{}",
    "llm.api_key_env=choice(A,hunter2-{})",
    "llm={{api_key_env:hunter2-{}}}",
    "method.backend={{kind:openai,'api_key_env': 'hunter2-{}', model: m}}",
    "llm.api_key_env=hunter2-{}}}",
]
SHOWING = [["hydra.verbose=true"], ["--cfg", "job"], ["--info", "all"], ["-m"]]


@pytest.mark.parametrize("override", TYPED)
@pytest.mark.parametrize("showing", SHOWING, ids=" ".join)
def test_hydra_does_not_show_a_typed_key(cli, tmp_path, caplog, override, showing):
    status, out, err = cli("task=synthetic", override.format(KEY), *showing)
    assert (status, out) == (2, "")
    assert err.startswith("scope-torch: api_key_env must be the name of an environment variable")
    nowhere(tmp_path, err, caplog.text)


def test_names_of_variables_are_accepted():
    names = ["OPENAI_API_KEY", "'MY_KEY'", "null", "", "${task.name}"]
    refuse_typed_keys([f"llm.api_key_env={name}" for name in [*names, "A,null", "choice(A,B)"]])
    refuse_typed_keys([f"llm={{base_url:x,api_key_env:{name}}}" for name in names])


def content(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""
