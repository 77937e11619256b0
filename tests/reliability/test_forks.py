"""A search in a process that was forked from one that has searched."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SEARCH = """
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import torch

import scope_torch as st

USD = {"nano": 1e-4, "mini": 4e-4, "pro": 1e-2}


def app(models, text):
    is_wrong = "nano" in models.values() and len(text) % 3 == 0
    return "?" if is_wrong else text.upper(), sum(USD[llm] for llm in models.values())


def choice(seed):
    texts = ["x" * (i + 1) for i in range(40)]
    return st.select(
        app,
        models={"plan": list(USD), "solve": list(USD)},
        reference="pro",
        dataset=[(text, text.upper()) for text in texts],
        metric=st.metrics.exact_match,
        max_quality_loss=0.05,
        budget_usd=5,
        seed=seed,
    ).choice


print(torch.get_num_threads(), choice(0), torch.ones(3000, 3000).sum().item())
with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
    print(pool.submit(torch.get_num_threads).result(), pool.submit(choice, 0).result())
print(torch.get_num_threads(), choice(0))
"""


def python(code: str, **environment: str) -> str:
    """What a program prints; it fails if the program hangs."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="POSIX")
def test_a_forked_child_searches_as_its_parent():
    """OpenMP's threads are not in the child: with more than one thread it waits for ever."""
    found = "{'plan': 'mini', 'solve': 'mini'}"
    printed = python(SEARCH, OMP_NUM_THREADS="2")
    assert printed == f"2 {found} 9000000.0\n1 {found}\n2 {found}\n"


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="POSIX")
def test_a_fork_while_the_event_loop_is_looked_up():
    """The thread that held the lock at the time of the fork is not in the child to give it back."""
    code = (
        "import os\n"
        "from scope_torch.evaluators import event_loop\n"
        "async def pid(): return os.getpid()\n"
        "with event_loop._lock:\n"
        "    child = os.fork()\n"
        "    if not child:\n"
        "        import signal; signal.alarm(60)\n"
        "        os._exit(event_loop.result_of(pid()) != os.getpid())\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    assert python(code) == "0\n"


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="POSIX")
def test_a_forked_child_holds_no_lock_and_no_port(tmp_path):
    """A worker of a pool lives on when its search has ended, or was killed."""
    code = f"""
import os
from pathlib import Path
from scope_torch.errors import InputError
from scope_torch.observation import Observation
from scope_torch.runs.journal import Journal
from scope_torch.serve.endpoint import Endpoint
path, url = Path({str(tmp_path / "journal.jsonl")!r}), "http://127.0.0.1:9/v1"
end, ours = os.pipe()
journal = Journal(path)
with Endpoint(url, api_key_env="") as first:
    port = int(first.url.rpartition(":")[2])
    if not (child := os.fork()):
        os.close(ours)
        os._exit(os.read(end, 1) != b"")  # as soon as the parent closes its side
try:
    Journal(path)
except InputError:
    print("locked")
journal.append([Observation((0,), 0, 0.1, 1.0)])
journal.close()
print(len(Journal(path).recorded))
with Endpoint(url, api_key_env="", port=port):
    os.close(ours)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert python(code) == "locked\n1\n0\n"
