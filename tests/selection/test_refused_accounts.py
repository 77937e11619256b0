"""A key that is not accepted, or credit that is used up, is no answer of the application."""

import json

import pytest
from llm.fake_endpoint import only_loopback  # noqa: F401
from selection import world
from selection.test_own_cache import selected
from serve.fake_upstream import LLMS, FakeUpstream, Say, Status
from serve.serve_cases import post

import scope_torch as st
from scope_torch.errors import InputError
from scope_torch.serve.current import base_url

CREDIT = "Your credit balance is too low to access the Anthropic API."
REFUSED = [
    (401, {"error": {"message": "User not found."}}),
    (402, {"error": {"message": "needs more credits"}}),
    (403, {"error": {"code": 403, "message": "Key limit exceeded (total limit)."}}),
    (400, {"type": "error", "error": {"type": "invalid_request_error", "message": CREDIT}}),
    (400, [{"error": {"code": 400, "message": "API key not valid. Please pass a valid one."}}]),
    (400, {"code": "Client specified an invalid argument", "error": "Incorrect API key provided"}),
    (429, {"error": {"code": "insufficient_quota", "message": "You exceeded your quota"}}),
]
PASSING = [
    (400, {"error": {"message": "the prompt is too long"}}),
    (403, {"error": {"message": "your input was flagged", "metadata": {"reasons": ["x"]}}}),
    (403, {"error": "Content violates usage guidelines. API key ID: 1", "code": "no"}),
    (429, {"error": {"code": "rate_limit_exceeded", "message": "slow down"}}),
    (500, {"error": {"message": "what is an API key?"}}),
    (400, {"error": {"message": "bad"}, "input": f"What does this mean: {CREDIT}"}),
    (403, {"error": {"type": "permission_error", "message": "no"}}),
    (403, "<title>Attention Required!</title>Sorry, you have been blocked"),
]


class ApiError(Exception):
    """As clients of LLMs raise it."""

    def __init__(self, message, status):
        super().__init__(message)
        self.status_code = status


class AuthenticationError(ApiError):
    pass


RAISED = [
    ApiError(f"Error code: 400 - {CREDIT}", 400),
    ApiError("400 INVALID_ARGUMENT. API key expired. Please renew the API key.", 400),
    ApiError("Error code: 429 - {'error': {'code': 'insufficient_quota'}}", 429),
    ApiError("402: This request requires more credits, or fewer max_tokens.", 402),
    AuthenticationError("Error code: 401 - no", 401),
    ExceptionGroup("in tasks", [ApiError("Error code: 402 - Insufficient Balance", 402)]),
]
OTHERS = [
    ApiError("Error code: 400 - the prompt is too long", 400),
    ApiError("HTTP Error 401: Unauthorized", 401),  # a page that a tool looked at
    ApiError("404: the credit balance is too low, or there is no such customer", 404),
    ApiError("400: insufficient balance for a transfer", 400),
    RuntimeError(CREDIT),  # no client's: a question may be about it
]


def search_of(app, folder, **changes):
    return st.select(
        app,
        models={"solve": ["nano", "pro"]},
        dataset=[(str(i), str(i)) for i in range(20)],
        metric=st.metrics.exact_match,
        **{"reference": "pro", "max_quality_loss": 0.2, "budget_usd": 1, "repeats": 0} | changes,
        run_dir=folder,
    )


def app_until(number, error):
    """Nano and pro are right; the call of this number raises, and all that follow."""
    calls = []

    def app(models, text):
        calls.append(text)
        if len(calls) >= number:
            raise error
        return text, {"nano": 0.001, "pro": 0.01}[models["solve"]]

    return app


@pytest.mark.slow
@pytest.mark.parametrize("error", RAISED, ids=lambda error: str(error)[-20:])
@pytest.mark.parametrize("on_error", ["zero", "retry"])
def test_it_ends_the_search_and_the_same_call_goes_on(tmp_path, error, on_error):
    app = app_until(25, error)
    with pytest.raises(type(error)) as caught:
        search_of(app, tmp_path, on_error=on_error)
    assert caught.value is error
    result = search_of(app_until(99, None), tmp_path, on_error=on_error)
    assert result.choice == {"solve": "nano"}
    assert all(o.quality == 1 for o in result.history)


@pytest.mark.slow
@pytest.mark.parametrize("error", OTHERS, ids=lambda error: str(error)[-20:])
def test_other_errors_stay_answers(tmp_path, error):
    result = search_of(app_until(25, error), tmp_path, on_error="zero")
    assert result.choice == {"solve": "pro"}  # nano has failed


def asked(module, prompt):
    messages = [{"role": "user", "content": prompt}]
    got = post(f"{base_url()}/chat/completions", {"model": f"scope/{module}", "messages": messages})
    if got.status != 200:
        raise ConnectionError(got.body)
    return got.json()["choices"][0]["message"]["content"]


def swallowing(answers):
    """An application that makes an answer of whatever its client raises, or what the LLM says."""

    def app(question):
        try:
            plan = asked("planner", f"Plan: {question}")
            return asked("solver", f"Solve: {question} By: {plan}")
        except ConnectionError as error:
            answers.append(str(error))
            return "sorry"

    return app


def refusing(after, status, error):
    """The upstream of the world, which answers so many requests."""
    number = 0

    def answer(request):
        nonlocal number
        number += 1
        is_refused = number > after
        return Status(status, json.dumps(error).encode()) if is_refused else world.answer(request)

    return FakeUpstream(answer)


ANSWERED = 71  # requests: the reference's 30, and some of the search
SHORT = {"repeats": 0, "budget_usd": 0.008}  # as much as 36 runs of the reference


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The search when all requests are answered."""
    with world.upstream() as upstream:
        folder = tmp_path_factory.mktemp("whole")
        whole = selected(swallowing([]), upstream, run_dir=folder, **SHORT)
        assert len(upstream.requests) > ANSWERED + 20
        return whole


def same(result, whole):
    assert result.choice == whole.choice
    assert result.quality.value == whole.quality.value
    told, expected = ([(o.theta, o.query, o.quality) for o in r.history] for r in (result, whole))
    assert told == expected


@pytest.mark.slow
@pytest.mark.parametrize(("status", "error"), REFUSED)
def test_the_endpoint_sees_it_although_the_application_answers(tmp_path, whole, status, error):
    how = {"run_dir": tmp_path, "on_error": "zero", **SHORT}
    answers = []
    with refusing(ANSWERED, status, error) as upstream, pytest.raises(InputError) as caught:
        selected(swallowing(answers), upstream, **how)
    is_credit = status in (402, 403, 429) or CREDIT in str(error)
    why = "no credit is left" if is_credit else "it does not accept the key"
    assert f"answered that {why}" in str(caught.value)
    assert answers
    with world.upstream() as upstream:
        same(selected(swallowing([]), upstream, **how), whole)


@pytest.mark.slow
@pytest.mark.parametrize(("status", "error"), PASSING)
def test_what_the_application_makes_of_other_errors_is_its_answer(tmp_path, status, error):
    answers = []
    with refusing(ANSWERED, status, error) as upstream:
        selected(swallowing(answers), upstream, run_dir=tmp_path, **SHORT)
    assert answers


@pytest.mark.slow
def test_one_that_answers_when_asked_again_is_an_answer(tmp_path, whole):
    """As a client that knows a second key does it."""
    numbers = iter(range(10**6))

    def answer(request):
        is_refused = next(numbers) % 3 == 1
        return Status(401, b'{"error": {"message": "no"}}') if is_refused else world.answer(request)

    def again(module, prompt):
        try:
            return asked(module, prompt)
        except ConnectionError:
            return asked(module, prompt)

    def app(question):
        plan = again("planner", f"Plan: {question}")
        return again("solver", f"Solve: {question} By: {plan}")

    with FakeUpstream(answer) as upstream:
        same(selected(app, upstream, run_dir=tmp_path, **SHORT), whole)


def test_a_judge_without_credit_gives_no_grade(tmp_path):
    def answer(request):
        is_judge = request["model"] == "vendor/small-1"
        return Status(402, b"{}") if is_judge else Say("fine")

    def metric(_, output):
        try:
            return float(asked("judge", output) == "1")
        except ConnectionError:
            return 0.0

    with FakeUpstream(answer) as upstream, pytest.raises(InputError, match="no credit is left"):
        st.select(
            lambda question: asked("only", question),
            models={"only": ["tiny", "large"]}, dataset=[("a", "b")] * 3, metric=metric,
            judge="small", reference="large", max_quality_loss=0.1, budget_usd=1,
            endpoint=st.Endpoint(upstream.url, prices=st.PriceList(dict(LLMS))), run_dir=tmp_path,
            on_error="zero",
        )  # fmt: skip
