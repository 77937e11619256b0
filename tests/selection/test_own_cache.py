"""Caches and kept clients of the application: what the endpoint did not see is no observation."""

import asyncio
import contextlib
import functools
import json
import threading
from datetime import datetime

import pytest
from llm.fake_endpoint import only_loopback  # noqa: F401
from openai import DefaultHttpxClient, OpenAI
from selection import world
from serve.fake_upstream import LLMS, Status
from serve.serve_cases import message_of, post

import scope_torch as st
from scope_torch.errors import InputError
from scope_torch.evaluators.application import Application, items_of
from scope_torch.evaluators.function import FunctionEvaluator
from scope_torch.observation import Observation, Request
from scope_torch.problem import SelectionProblem
from scope_torch.results.page.view import View
from scope_torch.runs.asked import left_out
from scope_torch.runs.measure import measure
from scope_torch.serve import queries
from scope_torch.serve.current import base_url, tagged

DOWN = Status(400, b'{"error": {"message": "down"}}')
NO_REQUEST = r"answered without a request to the endpoint.*dspy\.LM\(cache=False\).*another run_dir"
KEPT = r"came for a query that had ended.*scope_torch\.serve\.current\.tagged\(\).*another run_dir"


@pytest.fixture
def upstream():
    with world.upstream() as upstream:
        yield upstream


def asked(module, prompt, url=None):
    """What an LLM says, at the address of the query in flight or at one that was kept."""
    messages = [{"role": "user", "content": prompt}]
    body = {"model": f"scope/{module}", "messages": messages}
    got = post(f"{url or base_url()}/chat/completions", body)
    if got.status != 200:
        raise ConnectionError(message_of(got))
    return got.json()["choices"][0]["message"]["content"]


def app_with(ask_planner=asked, ask_solver=None):
    """Planner and solver of the newcomer's application, with other ways to ask."""

    def app(question):
        plan = ask_planner("planner", f"Plan: {question}")
        return (ask_solver or ask_planner)("solver", f"Solve: {question} By: {plan}")

    return app


def selected(app, upstream, questions=world.QUESTIONS[:15], **changes):
    changes = {
        "endpoint": st.Endpoint(upstream.url, prices=st.PriceList(dict(LLMS))),
        "budget_usd": 0.02,  # as much as 90 runs of the reference
    } | changes
    return st.select(
        app,
        models={"planner": world.LLM_NAMES, "solver": world.LLM_NAMES},
        dataset=questions,
        metric=st.metrics.exact_match,
        reference="large",
        max_quality_loss=0.1,
        name="planner_solver",
        **changes,
    )


def two_at_once(app, upstream, folder):
    """The reference on two queries at once: a search does not begin before one run was right."""
    questions = [(f"Solve: {question} By: good", answer) for question, answer in world.QUESTIONS]
    names = tuple(world.LLM_NAMES)
    theta = (names.index("large"),) * 2
    problem = SelectionProblem(
        "planner_solver", ("planner", "solver"), (names, names), 2, theta_ref=theta,
        reference_quality=1.0, reference_cost_usd=1.0, epsilon=0.1,
    )  # fmt: skip
    with st.Endpoint(upstream.url, prices=st.PriceList(dict(LLMS))) as endpoint:
        application = Application(app, st.metrics.exact_match, endpoint)
        items = items_of(questions[:2], with_expected=True)
        evaluator = FunctionEvaluator(problem, application, items, concurrency=2)
        return measure(evaluator, [Request(theta, query) for query in range(2)], folder=folder)


def journalled(folder):
    texts = [path.read_text() for path in folder.rglob("journal.jsonl")]
    return [Observation.from_json(line) for text in texts for line in text.splitlines()]


def by_function():
    return functools.cache(asked)


def on_disk(path):
    """Keyed by the payload, as diskcache and DSPy do."""

    def ask(module, prompt):
        known = json.loads(path.read_text()) if path.exists() else {}
        key = json.dumps({"model": f"scope/{module}", "messages": [prompt]})
        if key not in known:
            known[key] = asked(module, prompt)
            path.write_text(json.dumps(known))
        return known[key]

    return ask


def semantic():
    """Takes a question for another one that shares most of its words."""
    known = []

    def ask(module, prompt):
        words = {module, *prompt.split()}
        for old, said in known:
            if len(old & words) > 0.6 * len(old | words):
                return said
        known.append((words, asked(module, prompt)))
        return known[-1][1]

    return ask


@pytest.mark.parametrize(
    ("kind", "on_error"),
    [
        pytest.param("functools", "raise", marks=pytest.mark.slow),
        ("disk", "retry"),
        pytest.param("semantic", "zero", marks=pytest.mark.slow),
    ],
)
def test_a_cache_of_the_app_ends_the_search_and_leaves_no_observation(
    kind, on_error, upstream, tmp_path
):
    make = {"functools": by_function, "semantic": semantic}
    ask = make[kind]() if kind in make else on_disk(tmp_path / "cache")
    settings = {"run_dir": tmp_path / "run", "on_error": on_error}
    with pytest.raises(InputError, match=NO_REQUEST):
        selected(app_with(ask), upstream, **settings)
    for path in (tmp_path / "run").rglob("journal.jsonl"):
        lines = [Observation.from_json(line) for line in path.read_text().splitlines()]
        assert all(one.cost_usd > 0 for one in lines), path
    if kind == "functools":  # with the cache switched off
        result = selected(app_with(), upstream, **(settings | {"run_dir": tmp_path / "anew"}))
        assert result.choice == {"planner": "medium", "solver": "medium"}


def test_a_cache_that_is_warm_before_the_search(upstream, tmp_path):
    """The first run is replayed already: then nothing was ever asked."""
    ask = on_disk(tmp_path / "cache")
    with OpenAI(base_url=upstream.url, api_key="-") as client:
        (tmp_path / "cache").write_text("{}")
        for question, _ in world.QUESTIONS:
            for module, prompt in [("planner", f"Plan: {question}"),
                                   ("solver", f"Solve: {question} By: good")]:  # fmt: skip
                known = json.loads((tmp_path / "cache").read_text())
                key = json.dumps({"model": f"scope/{module}", "messages": [prompt]})
                (tmp_path / "cache").write_text(json.dumps(known | {key: "good"}))
    assert client is not None
    with pytest.raises(InputError, match=r"give its client .*current\.base_url\(\).*cache=False"):
        selected(app_with(ask), upstream)
    assert upstream.requests == []


def test_an_app_that_hides_that_its_requests_are_refused(upstream):
    """It asks for a model that is no module, and answers something all the same."""

    def app(question):
        try:
            return asked("writer", question)
        except Exception:
            return "no idea"

    with pytest.raises(InputError, match=r"each of its requests was refused: .*scope/writer"):
        selected(app, upstream)


class Lazy:
    """An application that makes its client, here the address, in the first query and keeps it."""

    def __init__(self):
        self._url, self._lock = None, threading.Lock()

    def __call__(self, question):
        with self._lock:
            self._url = self._url or base_url()
        return app_with(functools.partial(asked, url=self._url))(question)


@pytest.mark.parametrize("on_error", ["raise", "retry", "zero"])
@pytest.mark.parametrize("concurrency", [1, 2, 8])
def test_a_kept_client_ends_the_search(on_error, concurrency, upstream, tmp_path):
    """In turn its request comes for a query that has ended; at once it is booked on the first."""
    with pytest.raises(InputError, match=f"{KEPT}|{NO_REQUEST}|another run answered without"):
        selected(Lazy(), upstream, run_dir=tmp_path, on_error=on_error, concurrency=concurrency)
    observations = [one for one in journalled(tmp_path) if one.lost is None]
    assert len(set(observations)) == 1  # the first run, which is alone and right
    assert observations[0].quality == 1.0


def test_a_kept_client_at_once(upstream, tmp_path):
    """No run is right, also not the one that was billed for the other; what was paid is kept."""
    both, lazy = threading.Barrier(2), Lazy()

    def app(question):
        both.wait(20)  # else the first may end, rightly, before the other begins
        return lazy(question)

    with pytest.raises(InputError, match=f"{KEPT}|{NO_REQUEST}|another run answered without"):
        two_at_once(app, upstream, tmp_path)
    lost = journalled(tmp_path)
    assert all(one.lost is not None for one in lost)
    usd = sum(one.cost_usd for one in lost)
    assert usd == pytest.approx(upstream.usd_by_tag()[""], rel=1e-12)
    assert usd > 0


def test_the_run_that_got_the_calls_of_another_waits_for_it(upstream, tmp_path):
    """Its bill is that of two runs; it must not be recorded before the other one shows that."""
    first_is_asked, other_was_booked = threading.Event(), threading.Event()
    kept = []

    def app(question):
        if not kept:
            kept.append(base_url())
            said = asked("solver", question, kept[0])
            first_is_asked.set()
            other_was_booked.wait(20)
            return said
        first_is_asked.wait(20)
        said = asked("solver", question, kept[0])
        other_was_booked.set()
        threading.Event().wait(0.5)  # by then the first has returned
        return said

    with pytest.raises(InputError, match=r"another run answered|answered without a request"):
        two_at_once(app, upstream, tmp_path)
    assert len(upstream.served) == 2
    assert all(one.lost is not None for one in journalled(tmp_path))


@pytest.mark.slow
def test_a_kept_client_that_is_tagged_is_right(upstream):
    with st.Endpoint(upstream.url, prices=st.PriceList(dict(LLMS))) as endpoint:
        http = tagged(DefaultHttpxClient())
        with OpenAI(base_url=f"{endpoint.url}/v1", api_key="-", http_client=http) as client:

            def ask(module, prompt):
                messages = [{"role": "user", "content": prompt}]
                reply = client.chat.completions.create(model=f"scope/{module}", messages=messages)
                return reply.choices[0].message.content

            result = selected(app_with(ask), upstream, endpoint=endpoint, concurrency=8)
    assert result.choice == {"planner": "medium", "solver": "medium"}
    assert result.bill.total_usd == pytest.approx(upstream.usd_by_tag()[""], rel=1e-12)
    assert result.left_out == {}


def test_a_client_of_the_process_that_each_query_sets_anew(upstream):
    """As `litellm.api_base = base_url()`: alone it is right, at once the last gets all calls."""
    both_are_set, of_the_process = threading.Barrier(2, timeout=20), {}

    def app(question):
        of_the_process["url"] = base_url()
        both_are_set.wait()
        return asked("solver", question, of_the_process["url"])

    # The second call may come after the end of the query that it counts for.
    with pytest.raises(InputError, match=r"answered without|client that was made for"):
        two_at_once(app, upstream, None)


def test_an_endpoint_that_serves_a_choice_is_for_no_search(upstream):
    """A thread without its query was answered by the choice, and tiny was certified for that."""
    chosen = {"planner": "large", "solver": "large"}
    endpoint = st.Endpoint(upstream.url, prices=st.PriceList(dict(LLMS)), chosen=chosen)
    with pytest.raises(InputError, match=r"with chosen=.*make another Endpoint for the search"):
        selected(app_with(), upstream, endpoint=endpoint)
    assert upstream.requests == []


def test_an_app_that_asks_on_after_its_answer(upstream):
    """Nobody would know what it costs: the endpoint refuses what comes too late."""
    late = []

    def summarize(url):
        threading.Event().wait(0.2)  # by then the query has ended
        with contextlib.suppress(ConnectionError):
            asked("planner", "Plan: is 1 ", url)

    def app(question):
        said = app_with()(question)
        for thread in late:
            thread.join()
        late.append(threading.Thread(target=summarize, args=(base_url(),)))
        late[-1].start()
        return said

    with pytest.raises(InputError, match=r"asks on after its answer \(let it wait"):
        selected(app, upstream)
    late[-1].join()


@pytest.mark.parametrize("is_long_ago", [False, True])
def test_what_a_failed_run_leaves_behind_is_no_sign(is_long_ago, upstream, monkeypatch):
    """One call of `gather` raised, the other agent went on, and that ended the whole search."""
    if is_long_ago:  # then it is a client that is kept
        monkeypatch.setattr(queries, "_LEFT_OVER_S", 0.0)
    has_failed, has_gone_on = threading.Event(), threading.Event()

    async def agent(question):
        is_left_behind = not has_failed.is_set()
        await asyncio.to_thread(asked, "solver", question)
        if is_left_behind:
            await asyncio.to_thread(has_failed.wait, 20)
            with contextlib.suppress(ConnectionError):
                await asyncio.to_thread(asked, "solver", question)
            has_gone_on.set()

    async def fails(question):
        if not has_failed.is_set():
            raise ConnectionError(await asyncio.to_thread(asked, "planner", question))

    async def app(question):
        await asyncio.gather(agent(question), fails(question))
        return "no"

    with st.Endpoint(upstream.url, prices=st.PriceList(dict(LLMS))) as endpoint:
        application = Application(app, lambda expected, output: expected == output, endpoint)
        items, models = items_of(world.QUESTIONS[:2], True), {"planner": "tiny", "solver": "tiny"}
        with pytest.raises(ConnectionError):
            application(models, items[0])
        has_failed.set()
        assert has_gone_on.wait(20)
        told = pytest.raises(InputError, match=KEPT) if is_long_ago else contextlib.nullcontext()
        with told:
            application(models, items[1])


@pytest.mark.slow
def test_an_app_that_raises_before_it_asks_is_a_failure_like_any_other(upstream):
    def app(question):
        if "is 3 " in question:
            raise ValueError("no number")
        return app_with()(question)

    result = selected(app, upstream, on_error="zero", concurrency=4)
    assert result.problem.reference_quality == 14 / 15


@pytest.mark.slow
def test_a_cache_of_one_module_is_counted_and_told(upstream, tmp_path):
    """The plan is replayed, the solver is asked: then other planners look as good as the first."""
    settings = {"run_dir": tmp_path, "holdout": 0.2}
    plan = by_function()
    result = selected(app_with(plan, asked), upstream, **settings)
    runs = [*result.probe, *result.history, *result.held_out.choice]
    number = sum(o.module_calls[0] == 0 for o in runs) - sum(
        o.module_calls[0] == 0 for o in result.repeats
    )
    assert result.left_out == {"planner": number}
    assert number > 5
    told = f"planner was not asked in {number} runs (a cache?)"
    assert told in result.why
    assert json.loads((tmp_path / "result.json").read_text())["left_out"] == {"planner": number}
    page = result.save(tmp_path / "report.html").read_text()
    assert "runs that did not ask planner" in page
    # So the light is not green, whatever was certified.
    assert result.certified
    assert View(result, "finished", datetime(2026, 11, 25)).light == "doubted"
    assert "Proven good enough" not in page
    own = [one.module_calls[0] for one in result.evidence.runs(result.recommendation.theta)]
    doubt = f"but for the choice planner was not asked in {own.count(0)} runs (a cache?)"
    assert own.count(0) > 5
    assert doubt in " ".join(str(result).split())
    assert doubt in json.loads(result.save(tmp_path / "models.json").read_text())["doubt"]
    # The journal knows it: after a resume it is told as well, without a call.
    upstream.requests.clear()
    again = selected(app_with(plan, asked), upstream, **settings)
    assert again.left_out == result.left_out
    assert upstream.requests == []


@pytest.mark.slow
def test_a_module_may_be_left_out_if_the_app_says_so(upstream):
    app = app_with(by_function(), asked)
    assert selected(app, upstream, optional_modules=["planner"]).left_out == {}
    with pytest.raises(InputError, match=r"optional_modules has \['writer'\]; .*'planner'"):
        selected(app, upstream, optional_modules=["writer"])


@pytest.mark.slow
def test_a_module_that_the_reference_leaves_out_too(upstream):
    """A router: every third question needs no plan, whoever is asked."""

    def app(question):
        plans = int(question.split()[2]) % 3
        plan = asked("planner", f"Plan: {question}") if plans else "good"
        return asked("solver", f"Solve: {question} By: {plan}")

    assert selected(app, upstream).left_out == {}


def test_a_failed_call_is_a_call():
    """A module whose every call failed used no tokens, but was asked."""
    failed = {"module_tokens": ((0, 0), (9, 1)), "module_cost_usd": (0.0, 0.1)}
    assert Observation((0, 0), 0, 0.1, 1.0, **failed).modules_asked == {1}
    assert Observation((0, 0), 0, 0.1, 1.0, **failed, module_calls=(2, 1)).modules_asked == {0, 1}


@pytest.mark.slow
def test_a_failed_call_is_a_call_in_a_run(upstream, tmp_path):
    """The planner of the reference fails on a query, and the app goes on: a cache is told still."""
    plan, failed = by_function(), []

    def app(question):
        if "is 3 " in question and not failed:
            failed.append(question)
            upstream.answer, answer = (lambda _: DOWN), upstream.answer
            with pytest.raises(Exception, match="down"):
                asked("planner", f"Plan: {question}")
            upstream.answer = answer
            return asked("solver", f"Solve: {question} By: good")
        return app_with(plan, asked)(question)

    result = selected(app, upstream, base={"planner": "medium", "solver": "medium"})
    (of_three,) = [o for o in result.reference if o.query == 3]
    assert of_three.module_calls == (1, 1)
    assert of_three.module_tokens[0] == (0, 0)
    assert result.left_out["planner"] > 5


@pytest.mark.slow
def test_a_function_that_says_its_tokens(upstream):
    """The planner of this one is cached by itself; tokens by module tell it."""
    cache = {}

    def app(models, question):
        def ask(module, prompt, known):
            if known and prompt in cache:
                return cache[prompt], (0, 0)
            said = world.answer({"model": models[module], "messages": [{"content": prompt}]}).text
            cache[prompt] = said
            return said, (len(prompt), len(said))

        plan, planned = ask("planner", f"Plan: {question}", True)
        answer, solved = ask("solver", f"Solve: {question} By: {plan}", False)
        return answer, {"planner": planned, "solver": solved}

    result = selected(app, upstream, endpoint=None, prices=dict(LLMS))
    assert set(result.left_out) == {"planner"}
    assert result.left_out["planner"] > 5


class Replayed:
    """Grades itself right with `large` alone; replays the first answer, and says what it used."""

    def __init__(self, used, unused):
        self.used, self.unused, self.known = used, unused, {}

    def __call__(self, models, question):
        if question in self.known:
            return self.known[question], self.unused(models)
        right = set(models.values()) == {"large"}
        self.known[question] = dict(world.QUESTIONS)[question] if right else "wrong"
        return self.known[question], self.used(models)


def tokens(models):
    return dict.fromkeys(models, (500, 100))


def zeros(models):
    return dict.fromkeys(models, (0, 0))


def usd(amount):
    return lambda _: amount


@pytest.mark.parametrize("unused", [zeros, lambda _: {}], ids=["zeros", "none"])
@pytest.mark.parametrize("changes", [{}, {"on_error": "zero"}, {"repeat": True}], ids=str)
def test_a_function_whose_tokens_are_all_zero_asked_nobody(unused, changes, upstream, tmp_path):
    settings = {"endpoint": None, "prices": dict(LLMS), "budget_usd": 1, "run_dir": tmp_path}
    with pytest.raises(InputError, match=r"no LLM was asked.*dspy\.LM\(cache=False\)"):
        selected(Replayed(tokens, unused), upstream, **(settings | changes))
    assert all(one.cost_usd > 0 for one in journalled(tmp_path))


@pytest.mark.slow
def test_a_function_that_needs_no_llm_says_so(upstream):
    settings = {"endpoint": None, "prices": dict(LLMS), "budget_usd": 1}
    optional = ["planner", "solver"]
    result = selected(Replayed(tokens, zeros), upstream, optional_modules=optional, **settings)
    assert result.left_out == {}


@pytest.mark.slow
def test_a_choice_that_never_cost_anything_is_doubtful(upstream, tmp_path):
    """By USD nobody can tell a cache from LLMs that are free: it is said, and no error."""
    result = selected(Replayed(usd(0.01), usd(0.0)), upstream, endpoint=None, budget_usd=1)
    assert result.certified
    assert View(result, "finished", datetime(2026, 11, 25)).light == "doubted"
    told = json.loads(result.save(tmp_path / "models.json").read_text())["doubt"]
    assert "cost nothing" in told
    assert told in " ".join(str(result).split())
    assert told[1:] in " ".join(result.save(tmp_path / "report.html").read_text().split())


@pytest.mark.slow
def test_free_llms_that_were_asked_are_no_doubt(upstream):
    """A local LLM costs nothing, but uses tokens."""
    from scope_torch.llm.prices import LLMInfo

    prices = {name: LLMInfo(name, *(2 * [float(name == "large")])) for name in world.LLM_NAMES}

    def app(models, question):
        return dict(world.QUESTIONS)[question], dict.fromkeys(models, (500, 100))

    result = selected(app, upstream, endpoint=None, prices=prices, budget_usd=1)
    assert result.cost_usd.value == 0
    assert result.certified
    assert View(result, "finished", datetime(2026, 11, 25)).light == "proven"


BOTH, LATER, NONE = ((9, 1), (9, 1)), ((0, 0), (9, 1)), None


def observed(theta, query, tokens):
    return Observation(theta, query, 0.1, 1.0, module_tokens=tokens)


@pytest.mark.parametrize(
    ("reference", "runs", "optional", "expected"),
    [
        ([BOTH, BOTH], [LATER, BOTH], [], {"plan": 1}),
        ([BOTH, BOTH], [LATER, LATER], [], {"plan": 2}),
        ([BOTH, BOTH], [LATER, LATER], ["plan"], {}),
        ([BOTH, LATER], [LATER, BOTH], [], {}),  # the reference leaves it out too
        ([BOTH, LATER], [LATER, LATER], [], {"plan": 1}),  # but others never ask it
        ([LATER, LATER], [LATER, BOTH], [], {}),
        ([NONE, NONE], [LATER, LATER], [], {}),  # nothing is known
        ([BOTH, NONE], [NONE, LATER], [], {}),
    ],
)
def test_which_runs_left_a_module_out(reference, runs, optional, expected):
    found = left_out(
        ["plan", "solve"],
        [observed((1, 1), query, tokens) for query, tokens in enumerate(reference)],
        [observed((0, 1), query, tokens) for query, tokens in enumerate(runs)],
        optional,
    )
    assert found == expected


def test_calls_by_module_stand_in_the_journal():
    observation = Observation((0, 1), 3, 0.5, 1.0, module_calls=(0, 2))
    assert Observation.from_json(observation.to_json()) == observation
    for wrong in ("[-1, 2]", "[1.5]", '["1"]', "3"):
        line = f'{{"theta": [0], "query": 0, "cost_usd": 1, "quality": 1, "module_calls": {wrong}}}'
        with pytest.raises(InputError, match="not an observation"):
            Observation.from_json(line)
