"""Applications as they are: functions, coroutines, commands; with their own bill, or measured."""

import contextlib
import contextvars
import errno
import os
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from scope_torch import select
from scope_torch.errors import InputError
from scope_torch.evaluators import command
from scope_torch.evaluators.application import Application, Command, Item
from scope_torch.evaluators.function import FunctionEvaluator
from scope_torch.llm.billing import Usage
from scope_torch.llm.prices import LLMInfo
from scope_torch.observation import Request
from scope_torch.problem import SelectionProblem
from scope_torch.selection.setup import _name_of
from scope_torch.serve.ledger import ModuleBill

MODELS = {"plan": "nano", "solve": "pro"}
ITEM = Item(3, "six", "SIX")
IN_FLIGHT = contextvars.ContextVar("query in flight")


def same(expected, output):
    return float(expected == output)


class Measures:
    """In the place of an `Endpoint`: one call of `plan` for each query."""

    def __init__(self):
        self.seen = []

    @contextlib.contextmanager
    def query(self, models):
        self.seen.append(dict(models))
        bill = ModuleBill(1, prompt_tokens=7, completion_tokens=3, cost_usd=0.25)
        ledger = SimpleNamespace(by_module=lambda: {"plan": bill}, cost_usd=0.25)
        token = IN_FLIGHT.set(len(self.seen))
        env = {"OPENAI_BASE_URL": "http://127.0.0.1:1/q/5/v1"}
        told = {"is_read": False, "troubles": {}, "account_fault": lambda: None}
        yield SimpleNamespace(ledger=ledger, env=env, **told)
        IN_FLIGHT.reset(token)

    def fault_of(self, query):
        assert query.ledger.cost_usd == 0.25


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        (("SIX", 0.5), {"quality": 1.0, "cost_usd": 0.5}),
        (["six", 0.5], {"quality": 0.0, "cost_usd": 0.5}),
        (("SIX", {"plan": (1, 2)}), {"quality": 1.0, "tokens": {"plan": (1, 2)}}),
        (
            {"output": "SIX", "cost_usd": 0.5, "outcomes": {"steps": 2}},
            {"quality": 1.0, "cost_usd": 0.5, "outcomes": {"steps": 2}},
        ),
    ],
)
def test_an_app_that_says_its_cost(returned, expected):
    assert Application(lambda *_: returned, same)(MODELS, ITEM) == expected


def test_an_app_that_grades_itself_is_passed_on():
    application = Application(lambda *_: (0.5, 0.01))
    assert application(MODELS, ITEM) == (0.5, 0.01)
    assert len(application.outputs) == 0


def test_what_it_is_given_and_what_is_kept():
    seen = []
    application = Application(lambda *given: seen.append(given) or ("six!", 0.1), same)
    application(MODELS, ITEM)
    assert seen == [(MODELS, "six")]
    assert dict(application.outputs) == {(("nano", "pro"), 3): "six!"}


def test_an_app_that_is_measured():
    endpoint = Measures()
    graded = Application(str.upper, same, endpoint)(MODELS, ITEM)
    assert graded == {
        "quality": 1.0,
        "module_cost_usd": {"plan": 0.25, "solve": 0.0},
        "tokens": {"plan": (7, 3), "solve": (0, 0)},
        "calls": {"plan": 1, "solve": 0},
    }
    assert endpoint.seen == [MODELS]


@pytest.mark.parametrize("own", [{"cost_usd": 9.0}, {"tokens": {"plan": (1, 2)}}])
def test_a_measured_app_that_says_its_cost_is_told_to_leave_it_out(own):
    """It was told to return what it had returned, and its 9 USD were booked as lost."""
    application = Application(lambda _: {"quality": 1.0, **own}, None, Measures())
    (name,) = own
    with pytest.raises(InputError, match=f"returned {name}, and the endpoint .*; leave it") as told:
        application(MODELS, ITEM)
    assert told.value.refused_answer["module_cost_usd"] == {"plan": 0.25, "solve": 0.0}


def test_a_measured_app_may_take_the_models_too():
    def app(models, text):
        return text.upper() if models == MODELS else "another"

    assert Application(app, same, Measures())(MODELS, ITEM)["quality"] == 1.0


def test_a_coroutine_knows_the_query_in_flight():
    async def app(text):
        return str(IN_FLIGHT.get())

    application = Application(app, lambda _, output: float(output == "1"), Measures())
    assert application(MODELS, ITEM)["quality"] == 1.0


def test_latency_and_tokens_are_measured_where_they_are_needed():
    def app(text):
        time.sleep(0.02)
        return text.upper()

    names = ["latency_s", "output_tokens", "input_tokens"]
    outcomes = Application(app, same, Measures(), names)(MODELS, ITEM)["outcomes"]
    assert outcomes["latency_s"] >= 0.02
    assert (outcomes["input_tokens"], outcomes["output_tokens"]) == (7, 3)
    assert "outcomes" not in Application(app, same, Measures())(MODELS, ITEM)

    def said(models, text):
        return {"output": text, "tokens": {"plan": Usage(5, 2)}, "outcomes": {"latency_s": 9.0}}

    outcomes = Application(said, same, None, names)(MODELS, ITEM)["outcomes"]
    assert outcomes == {"latency_s": 9.0, "input_tokens": 5, "output_tokens": 2}


def test_a_command_needs_an_endpoint():
    with pytest.raises(InputError, match=r"'python app.py' is a command, .*; give endpoint="):
        Application("python app.py", same)


def python(code):
    return [sys.executable, "-c", code]


def test_the_last_line_of_a_command_is_its_answer():
    code = "import sys; print('thinking'); print(sys.argv[1].upper())"
    given = '; echo "$HOME" {input} {output}'  # nothing of it is for a shell, or a placeholder
    assert Command([*python(code), "{input}"])(given) == given.upper()


def test_a_command_reads_standard_input_and_writes_a_file():
    code = "import sys; open(sys.argv[1], 'w').write(sys.stdin.read() * 2)"
    assert Command([*python(code), "{output}"])("ab\n") == "ab\nab\n"
    twice = ["sh", "-c", "printf 'b\\na\\n' > {output}; sort {output} -o {output}"]
    assert Command(twice)("x") == "a\nb\n"
    assert Command(python("import sys; print(sys.stdin.read())"))({"a": 1}) == '{"a": 1}'


def test_a_command_finds_the_endpoint_in_its_environment():
    code = "import os; print(os.environ['OPENAI_BASE_URL'], 'PATH' in os.environ)"
    application = Application(
        python(code), lambda _, output: float(output.endswith("True")), Measures()
    )
    assert application(MODELS, ITEM)["quality"] == 1.0
    assert application.outputs[("nano", "pro"), 3] == "http://127.0.0.1:1/q/5/v1 True"


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("raise SystemExit('out of luck')", "ended with status 1: out of luck"),
        ("pass", "printed nothing"),
        ("import time; time.sleep(60)", "took more than 0.5 s"),
    ],
)
def test_a_command_that_fails(code, message):
    with pytest.raises(RuntimeError, match=message):
        Command(python(code), timeout_s=0.5 if "sleep" in code else 60)("input")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("python 'app.py {input}", "cannot be read: No closing quotation"),
        ("no-such-program {input}", "cannot run 'no-such-program': No such file or directory"),
        ("/dev/null {input}", "cannot run '/dev/null': Permission denied"),
    ],
)
def test_a_command_that_cannot_run_is_for_the_user_to_mend(command, message):
    with pytest.raises(InputError, match=message):
        Command(command)("input")


def test_what_this_machine_lacks_is_no_failure_of_a_command(monkeypatch, tmp_path):
    """With on_error="zero" a full disk would count as wrong answers, also of the reference."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    with pytest.raises(InputError, match=r"cannot run .*: No such file or directory"):
        Command(python("print(1)"))("input")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    no_memory = OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
    monkeypatch.setattr(subprocess, "Popen", Mock(side_effect=no_memory))
    with pytest.raises(InputError, match=r"cannot run .*: Cannot allocate memory"):
        Command(python("print(1)"))("input")


@pytest.mark.slow
def test_a_command_that_takes_too_long_is_killed_with_its_children(tmp_path):
    path = tmp_path / "child"
    code = (
        "import subprocess, sys, time; "
        "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']); "
        f"open({str(path)!r}, 'w').write(str(p.pid)); time.sleep(60)"
    )
    with pytest.raises(RuntimeError, match="took more than"):
        Command(python(code), timeout_s=2)("input")
    child = int(path.read_text())
    deadline = time.monotonic() + 20
    while _is_running(child):
        assert time.monotonic() < deadline, "the child of the command still runs"
        time.sleep(0.05)


def _is_running(pid):
    """A killed child whose parent is gone may stay as a zombie, until somebody reaps it."""
    done = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
    return bool(done.stdout.strip()) and not done.stdout.strip().startswith("Z")


@pytest.mark.parametrize("answer", ["a\u2028b", "a\x0bb\x0c\x1cc", "a\x85b", "é\U0001f600"])
def test_a_line_ends_at_a_newline_only(answer):
    code = (
        f"import sys; sys.stdout.buffer.write(('thinking\\r\\n' + {answer!r} + '\\r\\n').encode())"
    )
    assert Command(python(code))("x") == answer
    code = f"import sys; open(sys.argv[1], 'wb').write({answer!r}.encode())"
    assert Command([*python(code), "{output}"])("x") == answer


def test_bytes_that_are_no_text_are_marked():
    assert Command(python(r"import sys; sys.stdout.buffer.write(b'a\xffb\xc3\n')"))("x") == "a�b�"
    code = r"import sys; sys.stderr.buffer.write(b'\xff lost'); sys.exit(3)"
    with pytest.raises(RuntimeError, match="status 3: � lost"):
        Command(python(code))("x")
    code = r"import sys; open(sys.argv[1], 'wb').write(b'a\xff')"
    assert Command([*python(code), "{output}"])("x") == "a�"


def test_half_a_surrogate_pair_in_an_input():
    assert Command(python("print(input())"))("a\ud83d") == "a?"
    assert Command([*python("import sys; print(sys.argv[1])"), "{input}"])("a\ud83d") == "a?"


def test_an_input_that_is_no_json():
    with pytest.raises(InputError, match="neither text nor JSON"):
        Command(python("print(input())")).words({"x": {1, 2}})


def test_an_input_of_any_length_by_standard_input():
    text = "long " * 400_000
    code = (
        "import sys; text = sys.stdin.read(); print('noise' * 10**6); print(len(text), text[-5:])"
    )
    assert Command(python(code))(text) == "2000000 long"
    # A program that does not read its input does not hang.
    assert Command(python("print('ready')"))(text) == "ready"


LONG = [("x" * 131_071, False), ("x" * 131_072, True), ("é" * 70_000, True), ("a\0b", True)]


@pytest.mark.parametrize(("text", "refused"), LONG)
def test_an_input_that_cannot_be_an_argument_is_refused(text, refused):
    command = Command([*python("import sys; print(len(sys.argv[1]))"), "{input}"])
    if not refused:
        assert command(text) == str(len(text))
        return
    with pytest.raises(InputError, match=r"leave \{input\} out of the command: the program then"):
        command(text)
    assert Command(python("import sys; print(len(sys.stdin.read()))"))(text) == str(len(text))


def test_an_input_that_cannot_be_an_argument_is_refused_before_anything_is_paid(tmp_path):
    """By `select`, which looks at all items first."""
    log = tmp_path / "log"
    code = f"import sys; open({str(log)!r}, 'a').write('x'); print(sys.argv[1])"
    with pytest.raises(InputError, match="argument"):
        select(
            [*python(code), "{input}"],
            models=["nano", "pro"],
            reference="pro",
            dataset=[("short", "short"), ("y" * 140_000, "y")],
            metric=same,
            endpoint="http://127.0.0.1:9/v1",
            prices={name: LLMInfo(name, 1.0, 1.0) for name in ("nano", "pro")},
            max_quality_loss=0.1,
            budget_usd=1.0,
            progress=False,
        )
    assert not log.exists()


def test_what_a_command_prints_is_bounded(monkeypatch):
    monkeypatch.setattr(command, "_MOST_BYTES", 10_000)
    code = "print('n' * 9_000_000); print('answer')"
    assert Command(python(code))("x") == "answer"
    with pytest.raises(RuntimeError, match=r"printed a line of 10,000 bytes or more"):
        Command(python("print('n' * 9_000_000)"))("x")
    code = "import sys; open(sys.argv[1], 'w').write('n' * 10_001)"
    with pytest.raises(RuntimeError, match=r"wrote more than 10,000 bytes"):
        Command([*python(code), "{output}"])("x")
    code = "import sys; sys.stderr.write('e' * 9_000_000 + 'the cause'); sys.exit(1)"
    with pytest.raises(RuntimeError, match=r"status 1: e{491}the cause$"):
        Command(python(code))("x")


@pytest.mark.slow
def test_the_memory_for_what_a_command_prints_is_bounded():
    """A program prints 1 GB."""
    code = "import os\nfor _ in range(1000): os.write(1, b'n' * 10**6)\nprint(); print('answer')"
    child = (
        "import resource, sys; from scope_torch.evaluators.command import Command; "
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss; "
        f"print(Command([sys.executable, '-c', {code!r}])('x')); "
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000)"
    )
    done = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True)
    assert done.stdout.split() == ["answer", "True"], done.stderr


@pytest.mark.parametrize("chatty", [False, True])
def test_a_child_that_keeps_the_output_open_does_not_hold_a_finished_run(tmp_path, chatty):
    path = tmp_path / "child"
    loop = "while True: os.write(1, b'y' * 10_000)" if chatty else "time.sleep(600)"
    child = f"import os, time\n{loop}"
    code = (
        f"import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', {child!r}]); "
        f"open({str(path)!r}, 'w').write(str(p.pid)); print('early' * 5000)"
        + ("" if chatty else "; print('answer')")
    )
    try:
        answer = Command(python(code), timeout_s=60)("x")  # or it takes more than 60 s
    finally:
        os.kill(int(path.read_text()), signal.SIGKILL)
    assert chatty or answer == "answer"


def test_a_command_that_closes_its_output_is_waited_for():
    code = "import os, time; os.write(1, b'answer'); os.close(1); os.close(2); time.sleep(0.5)"
    began = time.monotonic()
    assert Command(python(code))("x") == "answer"
    assert time.monotonic() - began >= 0.5


def test_an_empty_command_is_refused():
    with pytest.raises(InputError, match="the command is empty"):
        Command(" ")


def test_commands_run_in_a_session_of_their_own():
    """Ctrl-C in the terminal must not end the calls in flight: they are paid for."""
    sessions = []
    code = "import os; print(os.getsid(0))"
    thread = threading.Thread(target=lambda: sessions.append(Command(python(code))("x")))
    thread.start()
    thread.join()
    assert int(sessions[0]) != os.getsid(0)


class Broken(RuntimeError):
    pass


@pytest.mark.parametrize("on_error", ["raise", "retry", "zero"])
def test_what_a_failed_run_cost_is_not_lost(on_error):
    """A run that breaks after a call was billed: 0.25 USD, see `Measures`."""
    calls = []

    def breaks_once(text):
        calls.append(text)
        if len(calls) == 1:
            raise Broken
        return text.upper()

    problem = SelectionProblem(
        "app", ("plan", "solve"), (("nano",), ("pro",)), 1, (0, 0), 1.0, 1.0, 0.1
    )
    application = Application(breaks_once, same, Measures())
    evaluator = FunctionEvaluator(
        problem, application, [ITEM], on_error=on_error, retry_wait_s=0, failed_cost_usd=9.0
    )
    if on_error == "raise":
        with pytest.raises(Broken) as caught:
            list(evaluator.evaluate([Request((0, 0), 0)]))
        assert "0.25 USD, which are in no observation" in caught.value.__notes__[1]
    else:
        (observation,) = evaluator.evaluate([Request((0, 0), 0)])
        expected = (0.5, 1.0) if on_error == "retry" else (0.25, 0.0)
        assert (observation.cost_usd, observation.quality) == expected


def test_a_key_on_the_command_line_is_in_no_name():
    key = "sk-proj-0123456789abcdefABCDEF"
    command = f"sh app.sh {{input}} --api-key {key} SOME_TOKEN={key} --max-tokens 5"
    assert key not in Command(command).__qualname__
    assert Command(command).words("x") == [
        *("sh", "app.sh", "x", "--api-key", key, f"SOME_TOKEN={key}", "--max-tokens", "5"),
    ]
    assert _name_of(command) == "sh_app_sh_input_api_key_SOME_TOKEN_max_tokens_5"
    assert _name_of("python 'my app.py'") == "python_my_app_py"
