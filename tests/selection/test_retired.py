"""`recheck` names an LLM that its provider has retired, whoever tells it."""

import json
import urllib.error
import urllib.request
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import pytest
from forked import forking
from llm.fake_endpoint import only_loopback  # noqa: F401
from selection.test_recheck import look as look_at
from serve.fake_upstream import FakeUpstream, Say, Status, prices

import scope_torch as st
from scope_torch.serve.current import base_url
from scope_torch.serve.endpoint import Endpoint

BOTH = {"plan": "tiny", "solve": "openai/small"}


class NotFound(Exception):
    """As clients of LLMs raise it."""

    def __init__(self, message, *, status=404, code=None):
        super().__init__(message)
        self.status_code, self.code = status, code


def look(app, folder, **changes):
    return look_at(app, folder, BOTH, **{"min_quality": 0.5, "draws": 8, **changes})


def gone(error, only=("query 1",)):
    """An application in process whose client raises for these queries; () means for all."""

    def app(models, text):
        if not only or text in only:
            raise error
        return text.upper(), 0.001

    return app


MISSING = NotFound("The model `small` does not exist", code="model_not_found")


def test_all_draws_fail(tmp_path):
    found = look(gone(MISSING, ()), tmp_path, on_error="zero")
    assert (found.exit_status, found.alarm) == (1, None)
    assert str(found).startswith("ALARM: plan=tiny, solve=openai/small\n  solve=openai/small is re")
    assert "  solve=openai/small is retired: its provider answers 404\n" in str(found)
    assert "  failed: 8 of 8 new draws, which count as quality 0\n" in str(found)
    kept = json.loads((tmp_path / "recheck.json").read_text())
    assert (kept["num_failed"], kept["retired"]) == (8, {"solve=openai/small": "404"})
    found = look(gone(None, ["none"]), tmp_path, on_error="zero")  # it is back
    assert (found.exit_status, found.num_failed) == (0, 0)
    assert "failed" not in str(found)


def test_the_first_failure_ends_a_look_that_raises(tmp_path):
    found = look(gone(MISSING, ()), tmp_path)
    assert (found.exit_status, list(found.pairs)) == (1, [])
    assert "0 draws on 0 days" in str(found)
    assert look(gone(None, ["none"]), tmp_path).num_new == 8
    found = look(gone(MISSING, ()), tmp_path)
    assert (found.exit_status, found.num_new, len(found.pairs)) == (1, 0, 8)
    assert "quality >= 0.5: 1 in 8 draws" in str(found)
    found = look(gone(None, ["none"]), tmp_path, concurrency=3)
    assert (found.exit_status, found.num_new, len(found.pairs)) == (0, 8, 16)


@pytest.mark.parametrize(
    ("error", "named"),
    [
        (NotFound("models/tiny is not found for API version v1beta"), {"plan=tiny": "404"}),
        (
            NotFound("the model tiny-2 is gone", code="model_not_found"),
            {"plan=tiny or solve=openai/small": "404"},
        ),
        (
            NotFound("Model Not Exist", status=400),
            {"plan=tiny or solve=openai/small": "model_not_found"},
        ),
        (
            NotFound("small was shut down", status=400, code="model_decommissioned"),
            {"solve=openai/small": "model_decommissioned"},
        ),
        (
            NotFound("no models/small any more", status=None, code=404),
            {"solve=openai/small": "404"},
        ),
    ],
)
def test_who_is_meant(tmp_path, error, named):
    wrapped = RuntimeError("step 2 failed")
    wrapped.__cause__ = error
    for raised in (error, wrapped):
        found = look(gone(raised, ()), tmp_path / type(raised).__name__)
        assert found.retired == named


@pytest.mark.parametrize(
    "error",
    [
        ValueError("no model"),
        NotFound("there is nothing at /v2/chat"),
        NotFound("The 3D model file car.obj was not found"),
        NotFound("the page /deployment/tiny-2 is gone", status=410),
        NotFound("the model is overloaded", status=503),
        NotFound("model small: slow down", status=429),
        NotFound("no such model", status=400, code="invalid_request_error"),
    ],
)
def test_other_errors_are_raised_as_they_are(tmp_path, error):
    with pytest.raises(type(error)):
        look(gone(error, ()), tmp_path)
    found = look(gone(error, ()), tmp_path / "zero", on_error="zero")
    assert (found.retired, found.num_failed) == ({}, 8)


def test_an_llm_that_answers_when_asked_again_is_not_retired(tmp_path, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda _: None)
    failures = [MISSING, MISSING]

    def app(models, text):
        if failures:
            raise failures.pop()
        return text.upper(), 0.001

    found = look(app, tmp_path, on_error="retry")
    assert (found.exit_status, len(found.pairs)) == (0, 8)


class Far(NotFound):
    """It cannot be sent home from a worker, as that of OpenAI's client."""

    def __init__(self, message, *, response):
        super().__init__(message, status=response)


def far(models, text):
    raise Far("model `tiny` is gone", response=410)


@pytest.mark.slow
def test_a_worker_tells_it_too(tmp_path):
    processes = partial(ProcessPoolExecutor, 1, mp_context=forking())
    assert look(far, tmp_path, executor=processes, on_error="zero", draws=2).retired == {
        "plan=tiny": "410"
    }


def asks(text):
    """Both modules, through the endpoint; its client's error says nothing that can be read."""
    for module in ("plan", "solve"):
        said = ask(module, text)
    return said


def ask(module, text):
    body = {"model": f"scope/{module}", "messages": [{"role": "user", "content": text}]}
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(
        f"{base_url()}/chat/completions", json.dumps(body).encode(), headers
    )
    try:
        with urllib.request.urlopen(request) as reply:
            return json.load(reply)["choices"][0]["message"]["content"]
    except urllib.error.HTTPError as error:
        error.close()
        raise RuntimeError("the LLM failed") from None


def always_right(*_):
    return 1.0


def judged(_, output):
    return float(ask("judge", output))


@pytest.mark.parametrize(
    ("status", "error", "said"),
    [
        (404, {"code": "model_not_found", "message": "The model does not exist"}, "404"),
        (410, {"message": "gone"}, "410"),
        (400, {"code": "model_decommissioned"}, "model_decommissioned"),
        (404, {"message": "no such file"}, None),
        (503, {"message": "the model is overloaded"}, None),
    ],
)
@pytest.mark.parametrize("on_error", ["raise", "zero"])
def test_the_endpoint_knows_who_is_retired(tmp_path, status, error, said, on_error):
    def answer(request):
        if request["model"] == "tiny":
            return Say("it is fine.")
        return Status(status, json.dumps({"error": error}).encode())

    how = {"on_error": on_error, "metric": always_right}
    with FakeUpstream(answer) as upstream:
        how |= {"endpoint": Endpoint(upstream.url, prices=prices())}
        models = {"plan": "tiny", "solve": "large"}
        settings = {"dataset": [("a", "b")], "min_quality": 0.5, "budget_usd": 1, "draws": 2}
        if said is None and on_error == "raise":
            with pytest.raises(RuntimeError, match="the LLM failed"):
                st.recheck(asks, models, run_dir=tmp_path, **settings, **how)
            return
        found = st.recheck(asks, models, run_dir=tmp_path, **settings, **how)
    assert found.retired == ({} if said is None else {"solve=large": said})
    assert found.exit_status == (said is not None)
    assert found.spent_usd > 0  # the first module has answered


def test_a_judge_that_is_retired_is_named(tmp_path):
    def answer(request):
        is_judge = request["model"] == "medium"
        return Status(404, b'{"error": {"message": "no model medium"}}') if is_judge else Say("1")

    with FakeUpstream(answer) as upstream:
        found = st.recheck(
            partial(ask, "only"), {"only": "tiny"}, dataset=[("a", "b")], min_quality=0.5,
            metric=judged, judge="medium",
            endpoint=Endpoint(upstream.url, prices=prices()), budget_usd=1, run_dir=tmp_path,
        )  # fmt: skip
    assert found.retired == {"judge=medium": "404"}
