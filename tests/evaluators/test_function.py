"""Systems that are asynchronous, raise, return something wrong, or answer always the same."""

import _thread
import asyncio
import json
import logging
import math
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import Executor, Future
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from llm.fake_endpoint import only_loopback  # noqa: F401
from tables import make_task

from scope_torch.errors import InputError
from scope_torch.evaluators.elsewhere import Elsewhere
from scope_torch.evaluators.event_loop import result_of
from scope_torch.evaluators.function import FunctionEvaluator
from scope_torch.llm.prices import LLMInfo
from scope_torch.observation import Observation, Request
from scope_torch.runs.runner import run

TASK = make_task(1, (3, 2), 4)
QUERIES = TASK.table.queries
PRICES = {f"llm{i}": LLMInfo(f"llm{i}", 1.0, 10.0) for i in range(3)}
EVERY = [Request(theta, query) for theta in np.ndindex(3, 2) for query in range(4)]


def evaluator_of(system, **settings) -> FunctionEvaluator:
    return FunctionEvaluator(TASK.problem, system, QUERIES, **settings)


def observe(assignment, query):
    """The value of the task's table."""
    theta = TASK.problem.codes(list(assignment.values()))
    return TASK.observe(Request(theta, QUERIES.index(query)))


def answer(assignment, query):
    observation = observe(assignment, query)
    return observation.quality, observation.cost_usd


def collect(observations, error) -> list[Observation]:
    """The observations that are yielded before the error that must end them."""
    found: list[Observation] = []
    with pytest.raises(error):
        pour(observations, found)
    return found


def pour(observations, found):
    for observation in observations:
        found.append(observation)


# An asynchronous system


class Chat(BaseHTTPRequestHandler):
    """Answers a chat completion, and keeps the connection open."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        message = {"role": "assistant", "content": "ok"}
        body = json.dumps(
            {
                "id": "0",
                "object": "chat.completion",
                "created": 0,
                "model": "m",
                "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
            }
        ).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, *_):
        pass  # the client has closed the connection


@pytest.fixture
def server():
    server = Server(("127.0.0.1", 0), Chat)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def client(server):
    openai = pytest.importorskip("openai")
    client = openai.AsyncOpenAI(base_url=server, api_key="none", max_retries=0, timeout=30)
    yield client
    result_of(client.close())


class Asks:
    """An asynchronous system with one client for all calls.

    Its fifth reply calls `fifth`, when all other calls in flight wait for that.
    """

    def __init__(self, client, fifth=lambda: None) -> None:
        self.client, self.fifth, self.num_calls, self.num_replies = client, fifth, 0, 0
        self.limit, self.called = asyncio.Semaphore(4), asyncio.Event()  # of the first loop

    async def __call__(self, assignment, query):
        self.num_calls += 1
        async with self.limit:
            messages = [{"role": "user", "content": query}]
            reply = await self.client.chat.completions.create(model="m", messages=messages)
        assert reply.choices[0].message.content == "ok"
        self.num_replies += 1
        if self.num_replies == 5:
            await asyncio.sleep(0.3)  # until the reader has read the first four and waits
            self.called.set()
            self.fifth()
        elif self.num_replies > 5:
            await self.called.wait()
        return answer(assignment, query)


@pytest.mark.parametrize("concurrency", [1, 8])
@pytest.mark.slow
def test_an_async_client_is_shared_by_all_calls_of_all_searches(client, concurrency):
    system = Asks(client)
    for seed in (0, 1):
        optimizer = TASK.scope(seed, batch_size=8)
        evaluator = evaluator_of(system, concurrency=concurrency, name="asks")
        result = run(TASK.problem, optimizer, evaluator, TASK.budget(3))
        assert len(result.history) > len(EVERY) / 2
        assert all(TASK.observe(o.request) == o for o in result.history)


def fail():
    raise TimeoutError("no reply")


def press_ctrl_c():
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("concurrency", [1, 8])
@pytest.mark.parametrize(
    ("fifth", "error"), [(fail, TimeoutError), (press_ctrl_c, KeyboardInterrupt)]
)
@pytest.mark.slow
def test_calls_in_flight_are_kept_and_the_loop_goes_on(client, fifth, error, concurrency):
    system = Asks(client, fifth)
    evaluator = evaluator_of(system, concurrency=concurrency)
    observations = collect(evaluator.evaluate(EVERY), error)
    assert len(observations) == system.num_calls - (fifth is fail) < len(EVERY)
    assert len(list(evaluator.evaluate(EVERY))) == len(EVERY)


def test_a_system_that_exits_does_not_end_the_calls_of_others():
    leaving = threading.Event()

    async def system(assignment, query):
        if query == QUERIES[0]:
            leaving.set()
            sys.exit("enough")
        while not leaving.is_set():
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.01)
        return answer(assignment, query)

    evaluator = evaluator_of(system, concurrency=4)
    assert len(collect(evaluator.evaluate(EVERY[:4]), RuntimeError)) == 3
    assert len(list(evaluator.evaluate(EVERY[1:4]))) == 3


@pytest.mark.slow
def test_a_forked_child_has_a_loop_of_its_own():
    async def loop():
        return id(asyncio.get_running_loop()), os.getpid()

    code = (
        "import asyncio, os, warnings\n"
        "from scope_torch.evaluators.event_loop import result_of\n"
        "warnings.simplefilter('ignore')\n"
        "async def pid(): return os.getpid()\n"
        "parent = result_of(pid())\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    os._exit(result_of(pid()) != os.getpid())\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), result_of(pid()) == parent)\n"
    )
    if not hasattr(os, "fork"):
        pytest.skip("no fork")
    assert result_of(loop()) == result_of(loop())
    assert python(code) == ("0 True\n", "")


@pytest.mark.slow
def test_the_process_ends_with_connections_open(server):
    pytest.importorskip("openai")
    code = (
        "import openai\n"
        "from scope_torch.evaluators.event_loop import result_of\n"
        f"client = openai.AsyncOpenAI(base_url={server!r}, api_key='none')\n"
        "messages = [{'role': 'user', 'content': 'hi'}]\n"
        "for _ in range(2):\n"
        "    reply = result_of(client.chat.completions.create(model='m', messages=messages))\n"
        "print(reply.choices[0].message.content)\n"
    )
    assert python(code) == ("ok\n", "")


def python(code: str) -> tuple[str, str]:
    root = str(Path(__file__).resolve().parents[2])
    environment = {**os.environ, "PYTHONPATH": root}
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    return done.stdout, done.stderr


# A system that raises


class Fails:
    """Raises on a query at its first `times` calls."""

    def __init__(self, times: float, query: str = QUERIES[2]) -> None:
        self.times, self.query, self.calls = times, query, 0

    def __call__(self, assignment, query):
        if query == self.query:
            self.calls += 1
            if self.calls <= self.times:
                raise TimeoutError("no reply in 60 s")
        return answer(assignment, query)


def test_an_error_names_configuration_and_query():
    with pytest.raises(TimeoutError, match="no reply in 60 s") as caught:
        list(evaluator_of(Fails(1)).evaluate(EVERY))
    assert caught.value.__notes__ == [
        f"raised by the system for query 2, {QUERIES[2]!r}, under "
        "{'module0': 'llm0', 'module1': 'llm0'}"
    ]


def test_retry_asks_again_until_the_system_answers(caplog):
    evaluator = evaluator_of(Fails(3), on_error="retry", retry_wait_s=0.001)
    with caplog.at_level(logging.WARNING):
        observations = list(evaluator.evaluate(EVERY))
    assert observations == [TASK.observe(request) for request in EVERY]
    waits = [record.args[-1] for record in caplog.records]
    assert waits == [0.001, 0.002, 0.004]
    assert evaluator.num_failed == 0


@pytest.mark.parametrize(("max_retries", "calls"), [(0, 1), (2, 3)])
def test_retry_gives_up(max_retries, calls):
    system = Fails(math.inf)
    settings = {"on_error": "retry", "retry_wait_s": 0.0, "max_retries": max_retries}
    observations = collect(evaluator_of(system, **settings).evaluate(EVERY), TimeoutError)
    assert system.calls == calls
    assert [o.query for o in observations] == [0, 1]


def test_after_an_interrupt_nothing_is_asked_again():
    calls = Counter[str]()

    def dear(assignment, query):
        calls[query] += 1
        if len(calls) == 3:
            _thread.interrupt_main()
            error = TimeoutError("no reply in 60 s")
            error.cost_usd = 0.5
            raise error
        return answer(assignment, query)

    evaluator = evaluator_of(dear, on_error="retry", retry_wait_s=1.0)
    *kept, lost = collect(evaluator.evaluate(EVERY), KeyboardInterrupt)
    assert (calls.total(), [o.query for o in kept]) == (3, [0, 1])
    assert (lost.query, lost.lost, lost.paid_usd) == (2, 0, 0.5)


class Terminal(Executor):
    """Closing it ends the workers, too."""

    num_calls = 0

    def submit(self, *_, **__):
        self.num_calls += 1
        future = Future()
        future.set_exception(OSError("the worker is gone"))
        _thread.interrupt_main()
        return future


@pytest.mark.parametrize("on_error", ["raise", "zero"])
def test_after_an_interrupt_no_lost_worker_is_replaced(on_error):
    executor = Terminal()
    evaluator = evaluator_of(answer, elsewhere=Elsewhere(executor), on_error=on_error)
    assert collect(evaluator.evaluate(EVERY), KeyboardInterrupt) == []
    assert (executor.num_calls, len(evaluator.take_lost())) == (1, 1)


def test_zero_gives_quality_0_and_says_so(caplog):
    evaluator = evaluator_of(Fails(2), on_error="zero", failed_cost_usd=0.25, concurrency=3)
    with caplog.at_level(logging.WARNING):
        observations = {o.request: o for o in evaluator.evaluate(EVERY)}
    failed = [o for o in observations.values() if o != TASK.observe(o.request)]
    assert [(o.query, o.quality, o.cost_usd) for o in failed] == [(2, 0.0, 0.25)] * 2
    assert len(observations) == len(EVERY)
    assert evaluator.num_failed == 2
    assert "TimeoutError('no reply in 60 s') for query 2" in caplog.text


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"on_error": "ignore"}, "on_error='ignore' must be raise, retry or zero"),
        ({"max_retries": -1}, "max_retries=-1 must be a number >= 0"),
        ({"retry_wait_s": math.nan}, "retry_wait_s=nan must be"),
        ({"failed_cost_usd": math.inf}, "failed_cost_usd=inf must be"),
    ],
)
def test_wrong_settings(settings, message):
    with pytest.raises(InputError, match=message):
        evaluator_of(answer, **settings)


# The value that a system returns


def test_a_dictionary_is_as_good_as_a_pair():
    def system(assignment, query):
        quality, cost = answer(assignment, query)
        return {"quality": quality, "cost_usd": cost}

    assert list(evaluator_of(system).evaluate(EVERY)) == [TASK.observe(r) for r in EVERY]
    tokens = {"module0": (100, 10), "module1": (0, 5)}
    pair, mapping = (
        list(evaluator_of(lambda *_: value, prices=PRICES).evaluate(EVERY[:1]))  # noqa: B023
        for value in ((0.5, tokens), {"quality": 0.5, "tokens": tokens})
    )
    assert pair == mapping
    assert pair[0].module_tokens == ((100, 10), (0, 5))


def test_a_choice_costs_what_its_llm_costs():
    tokens = {"module0": (100, 10), "module1": (0, 5)}
    llms = tuple(tuple(f"{llm} prompt=v1" for llm in names) for names in TASK.problem.llms)
    settings = {"queries": QUERIES, "prices": PRICES}
    evaluator = FunctionEvaluator(
        replace(TASK.problem, llms=llms), lambda *_: (0.5, tokens), **settings
    )
    (found,) = evaluator.evaluate(EVERY[:1])
    (plain,) = evaluator_of(lambda *_: (0.5, tokens), prices=PRICES).evaluate(EVERY[:1])
    assert found == plain
    assert found.cost_usd > 0


async def as_text(assignment, query):
    return "0.5"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "it must return"),
        (0.5, "it must return"),
        ((), "it must return"),
        ((0.5, 0.1, 0.2), "it must return"),
        ("10", "it must return"),
        (b"10", "it must return"),
        ({0.5, 0.1}, "it must return"),
        ({"quality": 0.5}, "it must return"),
        ({"quality": 0.5, "cost": 0.1}, "it must return"),
        ({"quality": 0.5, "cost_usd": 0.1, "tokens": {}}, "it must return"),
        (("0.5", 0.1), "'0.5' is not a number"),
        (({"score": 1}, 0.1), r"\{'score': 1\} is not a number$"),
        ((0.5, "0.1"), "'0.1' is not a number"),
        ((None, 0.1), "None is not a number"),
        ((0.5, None), "None is not a number"),
        (([0.5], 0.1), r"\[0.5\] is not a number"),
        ((np.ones(2), 0.1), "for query 3"),
        ((math.nan, 0.1), "quality=nan at theta"),
        ((1.5, 0.1), "quality=1.5 at theta"),
        ((0.5, math.nan), "cost_usd=nan at theta"),
        ((0.5, math.inf), "cost_usd=inf at theta"),
        ((0.5, 10**400), "too large"),
        ({"quality": 2, "cost_usd": 0.1}, "quality=2.0 at theta"),
        ((0.5, {"module0": 7}), "for query 3"),
        ((0.5, {"module0": (1, 2, 3)}), "for query 3"),
        ((0.5, {"module0": ("1", 2)}), "for query 3"),
        ((0.5, {"module0": (math.nan, 2)}), "for query 3"),
        ((0.5, {"module0": (10**400, 2)}), "for query 3"),
        ((0.5, {"module9": (1, 2)}), "tokens in"),
        ((0.5, {"module0": (-1, 2)}), "at least 0"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("on_error", ["raise", "retry", "zero"])
def test_a_wrong_value_is_an_error_that_names_configuration_and_query(value, message, on_error):
    evaluator = evaluator_of(lambda *_: value, prices=PRICES, on_error=on_error)
    with pytest.raises(InputError, match=message) as caught:
        list(evaluator.evaluate([Request((2, 1), 3)]))
    under = f"query 3, {QUERIES[3]!r}, under {{'module0': 'llm2', 'module1': 'llm1'}}"
    assert f"for {under}: " in str(caught.value)


def test_a_wrong_value_of_an_async_system_is_named_too():
    with pytest.raises(InputError, match=r"returned '0.5' for query 0, .* it must return"):
        list(evaluator_of(as_text).evaluate(EVERY))


# A deterministic system


class Counted:
    """Counts its calls of each (configuration, query); no two answers cost the same."""

    def __init__(self) -> None:
        self.calls: Counter[tuple] = Counter()
        self._lock = threading.Lock()

    def __call__(self, assignment, query):
        with self._lock:
            self.calls[(*assignment.values(), query)] += 1
            number = self.calls.total()
        quality, _ = answer(assignment, query)
        return quality, number * 1e-3


@pytest.mark.parametrize("concurrency", [1, 8])
def test_a_deterministic_system_is_asked_once_for_a_pair(concurrency):
    """Also if repeats are in flight together; every repeat has the values of the first."""
    system = Counted()
    evaluator = evaluator_of(system, deterministic=True, concurrency=concurrency)
    requests = [r._replace(replicate=i) for r in EVERY for i in range(4)]
    observations = list(evaluator.evaluate(requests))
    observations += evaluator.evaluate([r._replace(replicate=4) for r in EVERY])
    assert set(system.calls.values()) == {1}
    assert len(system.calls) == len(EVERY)
    assert Counter(o.request for o in observations) == Counter(
        r._replace(replicate=i) for r in EVERY for i in range(5)
    )
    assert len({(o.theta, o.query, o.quality, o.cost_usd) for o in observations}) == len(EVERY)


def test_without_it_every_repeat_is_a_call():
    system = Counted()
    requests = [r._replace(replicate=i) for r in EVERY for i in range(2)]
    list(evaluator_of(system).evaluate(requests))
    assert set(system.calls.values()) == {2}


def test_answers_of_an_earlier_process_are_remembered():
    system = Counted()
    evaluator = evaluator_of(system, deterministic=True)
    evaluator.remember(TASK.observe(request) for request in EVERY[1:])
    observations = list(evaluator.evaluate([r._replace(replicate=1) for r in EVERY]))
    assert system.calls.total() == 1
    assert [o.cost_usd for o in observations[1:]] == [TASK.observe(r).cost_usd for r in EVERY[1:]]


@pytest.mark.parametrize("on_error", ["raise", "zero"])
def test_a_failure_is_an_answer_if_it_counts_as_zero(on_error):
    """Else its pair is asked again, by a repeat or after the search was resumed."""
    system = Fails(1, QUERIES[0])
    evaluator = evaluator_of(system, deterministic=True, on_error=on_error)
    requests = [EVERY[0], EVERY[0]._replace(replicate=1)]
    if on_error == "raise":
        collect(evaluator.evaluate(requests), TimeoutError)
        (observation,) = evaluator.evaluate(requests[1:])
        assert observation == TASK.observe(requests[1])
        return
    (first,) = evaluator.evaluate(requests[:1])
    (second,) = evaluator.evaluate(requests[1:])
    assert (first.quality, first.failed) == (0.0, "app")
    assert second == replace(first, replicate=1)
    resumed = evaluator_of(Fails(0, QUERIES[0]), deterministic=True, on_error=on_error)
    resumed.remember([first])
    assert list(resumed.evaluate(requests[1:])) == [second]


@pytest.mark.parametrize("on_error", ["raise", "zero", "retry"])
def test_a_failure_that_was_kept_is_a_repeat_whatever_on_error_is_today(on_error):
    failed = [Observation((0, 0), query, 0.5, 0.0, failed="app") for query in range(2)]
    in_search = Observation((1, 0), 0, 0.25, 0.0, failed="app")
    kept = [replace(one, replicate=1) for one in (failed[0], in_search)]
    anew = Observation((0, 0), 1, 0.5, 1.0, replicate=1)  # when failures were no answers
    evaluator = evaluator_of(answer, deterministic=True, on_error=on_error)
    evaluator.paid(failed)
    assert evaluator.repeats([kept[0], anew, in_search, kept[1]]) == kept


@pytest.mark.slow
def test_a_search_is_the_same_with_kept_answers():
    task, searches = make_task(1, (4, 3), 16), {}
    for deterministic in (False, True):
        calls = Counter()

        def system(assignment, query, calls=calls):
            theta = task.problem.codes(list(assignment.values()))
            calls[theta, query] += 1
            observation = task.observe(Request(theta, task.table.queries.index(query)))
            return observation.quality, observation.cost_usd

        evaluator = FunctionEvaluator(
            task.problem, system, task.table.queries, deterministic=deterministic
        )
        result = run(task.problem, task.scope(1), evaluator, task.budget(6))
        searches[deterministic] = [*result.history], result.trace, result.history.spend_usd
        repeats = sum(o.replicate > 0 for o in result.history)
        assert repeats > 0
        assert calls.total() == len(result.history) - deterministic * repeats
    assert searches[True] == searches[False]
