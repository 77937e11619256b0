"""`select(executor=...)`: app and metric run in other processes, and nothing else changes."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial

import pytest
from evaluators import far_apps
from evaluators.far_apps import App, calls, in_capitals
from forked import forking
from long_runs import among_others
from source_code import ROOT

import scope_torch as st
from scope_torch.errors import InputError
from scope_torch.evaluators.elsewhere import Elsewhere, WorkerLost, _packed, _unpacked
from scope_torch.evaluators.function import FunctionEvaluator
from scope_torch.evaluators.returned import usd_of
from scope_torch.runs.journal import lost_in
from scope_torch.runs.recorded import read_run
from scope_torch.watch.reading import result_of_run

SPAWN = multiprocessing.get_context("spawn")
spawned = partial(ProcessPoolExecutor, 2, mp_context=SPAWN)


def processes(number=2):
    """Forked from one that has imported: what is lost, and what is named, needs no more."""
    return ProcessPoolExecutor(number, mp_context=forking())


class Locked:
    """A metric that no other process can have."""

    def __init__(self):
        self.lock = threading.Lock()

    def __call__(self, expected, output):
        return float(expected == output)


def settings(**changes):
    return {
        "models": list(far_apps.PRICE),
        "reference": {"plan": "pro", "solve": "pro"},
        "dataset": [(f"query {i}", f"QUERY {i}") for i in range(24)],
        "metric": in_capitals,
        "max_quality_loss": 0.1,
        "budget_usd": 3.0,
        "name": "my_app",
        "repeats": 0,
        "batch_size": 3,
        "concurrency": 3,
    } | changes


def seen(result):
    """What the search saw and found, without what it lost."""
    measured = [*result.probe, *result.reference, *result.history]
    return result.choice, result.recommendation, result.stop_reason, measured


@pytest.fixture(name="expected", scope="module")
def result_of_a_search_here(tmp_path_factory):
    return st.select(App(tmp_path_factory.mktemp("here")), **settings(concurrency=1))


@pytest.mark.slow
def test_processes_give_what_a_sequential_search_gives(tmp_path, expected):
    with spawned() as pool:
        result = st.select(App(tmp_path), **settings(executor=pool, run_dir=tmp_path / "run"))
    assert seen(result) == seen(expected)
    assert str(os.getpid()) not in {process for process, *_ in calls(tmp_path)}
    assert result.lost == []
    # The run goes on without the executor, and pays for nothing twice.
    number = len(calls(tmp_path))
    again = st.select(App(tmp_path), **settings(run_dir=tmp_path / "run"))
    assert seen(again) == seen(result)
    assert len(calls(tmp_path)) == number


@pytest.mark.slow
def test_threads_give_what_a_sequential_search_gives(tmp_path, expected):
    app = App(tmp_path)
    app.lock = threading.Lock()  # nothing is pickled for a thread
    with ThreadPoolExecutor(3) as pool:
        assert seen(st.select(app, **settings(executor=pool))) == seen(expected)
    made = partial(ThreadPoolExecutor, 3)
    assert seen(st.select(app, **settings(executor=made))) == seen(expected)


@pytest.mark.parametrize(
    "kills_at",
    [pytest.param(1, marks=pytest.mark.slow), 9, pytest.param(60, marks=pytest.mark.slow)],
)
@pytest.mark.slow
def test_a_killed_worker_loses_its_calls_and_nothing_else(tmp_path, expected, caplog, kills_at):
    """In the preflight, the reference, and the search."""
    run_dir = tmp_path / "run"
    app, made = App(tmp_path, kills_at), []

    def make():
        made.append(processes(1))
        return made[-1]

    result = st.select(app, **settings(executor=make, run_dir=run_dir, concurrency=1))
    assert (tmp_path / "killed").exists()
    assert len(made) == 2
    assert seen(result) == seen(expected)
    (lost,) = result.lost
    assert (lost.paid_usd, lost.failed) == (0.0, "app")
    assert caplog.text.count("a worker was lost with the system: query") == 1
    assert "0 failed; 1 lost with a worker, at unknown cost" in str(result.bill)
    assert "; 1 lost with a worker" in str(result)
    assert len(calls(tmp_path)) == result.bill.num_calls
    again = st.select(App(tmp_path), **settings(run_dir=run_dir, concurrency=1))
    assert (seen(again), again.lost) == (seen(result), [lost])
    assert lost_in(run_dir) == [lost]
    assert result_of_run(read_run(run_dir)).bill.num_lost == 1


@pytest.mark.slow
@pytest.mark.parametrize("with_run_dir", [False, True])
def test_calls_that_are_lost_in_the_reference_leave_less_for_the_search(
    tmp_path, monkeypatch, with_run_dir
):
    """Where an endpoint knows what they have cost."""

    class Flaky(Executor):
        number = 0

        def submit(self, function, /, *arguments, **keywords):
            self.number += 1
            future = Future()
            if 12 < self.number <= 32 and self.number % 2:
                future.set_exception(OSError("the worker is gone"))
            else:
                future.set_result(function(*arguments, **keywords))
            return future

    monkeypatch.setattr(
        "scope_torch.evaluators.function.usd_of",
        lambda error: 0.05 if isinstance(error, WorkerLost) else usd_of(error),
    )
    run_dir = tmp_path / "run" if with_run_dir else None
    given = settings(budget_usd=1.6, run_dir=run_dir, repeats=4)
    result = st.select(App(tmp_path), **given, executor=Flaky())
    assert len(result.lost) == 10
    amounts = result.bill.amounts
    assert amounts["lost"] == pytest.approx(0.5)
    before = sum(usd for name, usd in amounts.items() if name != "search")
    assert result.budget_usd == pytest.approx(1.6 - before)
    if with_run_dir:  # and the same call is no other one
        assert seen(st.select(App(tmp_path), **given)) == seen(result)


@pytest.mark.slow
def test_the_calls_of_a_broken_pool_are_all_asked_again(tmp_path, expected):
    result = st.select(App(tmp_path, 40), **settings(executor=processes))
    assert (tmp_path / "killed").exists()
    assert seen(result) == seen(expected)
    assert 1 <= len(result.lost) <= 3  # in flight
    assert result.bill.num_lost == len(result.lost)


@pytest.mark.slow
def test_loky_is_one_of_them(tmp_path, expected):
    """It replaces its broken pool by itself."""
    loky = pytest.importorskip("joblib.externals.loky")
    result = st.select(
        App(tmp_path, 40), **settings(executor=partial(loky.get_reusable_executor, 1))
    )
    loky.get_reusable_executor().shutdown()
    assert (tmp_path / "killed").exists()
    assert str(os.getpid()) not in {process for process, *_ in calls(tmp_path)}
    assert seen(result) == seen(expected)
    assert 1 <= len(result.lost) <= 3


@pytest.mark.slow
def test_a_pool_that_breaks_names_the_mend(tmp_path, expected):
    with processes() as pool, pytest.raises(InputError, match=r"give a function that makes one"):
        st.select(App(tmp_path, 40), **settings(executor=pool, run_dir=tmp_path / "run"))
    result = st.select(App(tmp_path), **settings(run_dir=tmp_path / "run"))
    assert seen(result) == seen(expected)
    assert result.bill.num_lost >= 1


@pytest.mark.slow
def test_a_call_whose_worker_always_ends_is_given_up(tmp_path):
    with pytest.raises(InputError, match=r"lost the worker of one call 4 times"):
        st.select(far_apps.always_killed, **settings(executor=processes, run_dir=tmp_path))
    assert len(lost_in(tmp_path)) == 4


@pytest.mark.slow
def test_what_a_call_raises_comes_home(tmp_path):
    """Also an exception that pickle cannot make again, with what it cost."""
    with pytest.raises(RuntimeError, match=r"Odd: this and that") as raised:
        st.select(far_apps.raises_odd, **settings(executor=processes, run_dir=tmp_path))
    assert any("in raises_odd" in note for note in raised.value.__notes__)
    assert [one.paid_usd for one in lost_in(tmp_path)] == [0.25]


@pytest.mark.slow
def test_an_async_app_runs_on_the_loop_of_its_worker():
    result = st.select(far_apps.later, **settings(executor=processes))
    assert result.choice == {"plan": "nano", "solve": "nano"}


def test_the_seconds_are_those_of_the_worker():
    """Not those that a call waits for a free one."""

    class Late(Executor):
        def submit(self, function, /, *args, **kwargs):
            future = Future()
            threading.Timer(0.3, lambda: future.set_result(function(*args, **kwargs))).start()
            return future

    call = Elsewhere(Late()).function("app", str.upper)
    value, seconds = call("yes")
    assert value == "YES"
    assert seconds < 0.2


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"app": threading.Lock().__enter__}, "app=lock.__enter__ cannot be sent"),
        ({"metric": Locked()}, "metric=.*Locked.* cannot be sent"),
        ({"dataset": [(1, 2), (threading.Lock(), 3)]}, r"dataset\[1\]=.*lock.* cannot be sent"),
    ],
)
def test_what_cannot_be_sent_is_named_before_a_call(tmp_path, changes, named):
    arguments = settings(executor=spawned, **{k: v for k, v in changes.items() if k != "app"})
    with pytest.raises(InputError, match=named):
        st.select(changes.get("app", App(tmp_path)), **arguments)
    assert calls(tmp_path) == []


def test_without_cloudpickle_a_function_must_be_importable(monkeypatch):
    monkeypatch.setattr("scope_torch.evaluators.elsewhere.cloudpickle", None)
    elsewhere = Elsewhere(spawned)
    elsewhere.function("app", far_apps.later)
    with pytest.raises(
        InputError, match=r"app=.*<lambda> cannot be sent .* pip install cloudpickle"
    ):
        elsewhere.function("app", lambda _, text: (text, 0.01))


def test_an_error_that_says_no_cost_says_none_at_home_either():
    """Else a call that failed costs 0, and not the `failed_cost_usd` that it costs in a thread."""
    error = far_apps.Odd("this", "that")
    for usd in (0.25, None):
        if usd is None:
            del error.cost_usd
        error.add_note("somewhere else")
        with pytest.raises(RuntimeError, match="this and that") as raised:
            _unpacked("app", _packed("app", error=error))
        assert getattr(raised.value, "cost_usd", None) == usd


@pytest.mark.slow
def test_what_cannot_come_home_is_named():
    with pytest.raises(InputError, match=r"the app returned .*lock.*cannot be sent home") as raised:
        st.select(far_apps.returns_a_lock, **settings(executor=processes))
    assert any("this run cost 0.01 USD" in note for note in raised.value.__notes__)


@pytest.mark.slow
def test_a_worker_that_cannot_import_the_app_says_so(tmp_path, monkeypatch):
    (tmp_path / "only_here.py").write_text("def app(models, text):\n    return text, 0.1\n")
    monkeypatch.syspath_prepend(tmp_path)
    from only_here import app

    monkeypatch.undo()
    with pytest.raises(InputError, match=r"cannot load the app \(ModuleNotFoundError"):
        st.select(app, **settings(executor=partial(ProcessPoolExecutor, 1, mp_context=SPAWN)))


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: 5, "must make a new concurrent.futures.Executor"),
        (dict, "must make a new concurrent.futures.Executor"),
    ],
)
def test_a_function_that_makes_no_executor_is_named(tmp_path, make, named):
    with pytest.raises(InputError, match=named):
        st.select(App(tmp_path), **settings(executor=make))


def test_an_executor_that_was_shut_down_is_named(tmp_path):
    with spawned() as pool:
        pass
    with pytest.raises(InputError, match="keep it open until the search has ended"):
        st.select(App(tmp_path), **settings(executor=pool))


@pytest.mark.slow
def test_a_function_that_makes_the_broken_one_again_is_named(tmp_path):
    with processes() as pool, pytest.raises(InputError, match=r"a new .*Executor each time"):
        st.select(App(tmp_path, 1), **settings(executor=lambda: pool))


@pytest.mark.slow
def test_an_executor_that_was_made_is_shut_down(tmp_path):
    made = []

    def make():
        made.append(processes())
        return made[-1]

    st.select(App(tmp_path), **settings(executor=make))
    with pytest.raises(RuntimeError, match="after shutdown"):
        made[0].submit(abs, 1)


@pytest.mark.slow
def test_a_system_of_an_evaluator_may_run_elsewhere(tmp_path):
    problem = st.SelectionProblem(
        "one", ("only",), (("nano", "pro"),), 3, theta_ref=(1,), reference_quality=1.0,
        reference_cost_usd=0.01, epsilon=0.1,
    )  # fmt: skip
    with Elsewhere(processes) as elsewhere:
        evaluator = FunctionEvaluator(
            problem, far_apps.graded, ["a", "b", "c"], 2, elsewhere=elsewhere
        )
        found = list(evaluator.evaluate([st.Request((0,), query) for query in range(3)]))
    assert sorted((one.query, one.quality, one.cost_usd) for one in found) == [
        (0, 1.0, 0.5), (1, 0.0, 0.5), (2, 0.0, 0.5),
    ]  # fmt: skip


def test_a_call_that_the_executor_cancels_is_lost():
    class Cancels(Executor):
        def submit(self, function, /, *args, **kwargs):
            future = Future()
            future.cancel()
            return future

    with pytest.raises(WorkerLost, match="CancelledError"):
        Elsewhere(Cancels()).function("app", max)(1, 2)


PROGRAM = """
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

if __name__ == "__main__":  # the workers run this file, too
    from evaluators.far_apps import SlowApp
    import scope_torch as st
    from selection.test_executor import settings

    def pool():
        open(sys.argv[1] + "/made", "w").close()
        return ProcessPoolExecutor(2, mp_context=get_context("spawn"))

    st.select(SlowApp(sys.argv[1]), **settings(executor=pool, run_dir=sys.argv[1] + "/run"))
"""


@pytest.mark.slow
@pytest.mark.parametrize("is_starting", [False, among_others(True)])
def test_an_interrupt_of_the_terminal_loses_no_call(tmp_path, expected, is_starting):
    """It reaches the workers too, which end their calls; those that still start, too."""
    (tmp_path / "program.py").write_text(PROGRAM)
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "program.py"), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": path},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )

    def is_time():
        if is_starting:
            return (tmp_path / "made").exists()
        return len(calls(tmp_path)) >= 12 and len({worker for worker, *_ in calls(tmp_path)}) == 2

    while not is_time():
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.02)
    time.sleep(0.3 * is_starting)  # the worker is a process now, which imports
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert "KeyboardInterrupt" in err
    assert "calls in flight, which are paid for" in err
    result = st.select(App(tmp_path), **settings(run_dir=tmp_path / "run"))
    assert seen(result) == seen(expected)
    assert result.lost == []
    assert len(calls(tmp_path)) == result.bill.num_calls  # each is paid once
