"""`select(executor=..., endpoint=...)`: workers ask the endpoint of the search, which books."""

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import pytest
from evaluators.far_apps import KilledOnce, answers, judges
from forked import forking
from llm.fake_endpoint import only_loopback  # noqa: F401
from selection.test_judge import QUESTIONS, answer, of_judge, paid, selected
from serve.fake_upstream import FakeUpstream

from scope_torch.errors import InputError
from scope_torch.evaluators import elsewhere
from scope_torch.serve.queries import QueryInFlight

spawned = partial(ProcessPoolExecutor, 2, mp_context=multiprocessing.get_context("spawn"))


def processes(number=2):
    """Forked from one that has imported."""
    return ProcessPoolExecutor(number, mp_context=forking())


@pytest.fixture
def upstream():
    with FakeUpstream(answer) as upstream:
        yield upstream


@pytest.mark.slow
def test_app_and_judge_in_processes_are_billed_by_the_endpoint(upstream):
    here = selected(upstream, batch_size=3)
    usd, of_judges = paid(upstream), of_judge(upstream)
    there = selected(upstream, batch_size=3, concurrency=3, executor=spawned)
    assert (there.choice, list(there.history)) == (here.choice, list(here.history))
    assert there.bill == here.bill
    assert paid(upstream) == pytest.approx(2 * usd)
    assert of_judge(upstream) == pytest.approx(2 * of_judges)


@pytest.mark.slow
def test_a_command_runs_beside_its_worker(upstream, tmp_path):
    program = (
        "import json, os, sys, urllib.request as u\n"
        "body = {'model': 'scope/answer', 'messages': [{'role': 'user', 'content': sys.argv[1]}]}\n"
        "r = u.Request(os.environ['OPENAI_BASE_URL'] + '/chat/completions',\n"
        "    json.dumps(body).encode(), {'Content-Type': 'application/json'})\n"
        "print(json.load(u.urlopen(r))['choices'][0]['message']['content'])\n"
        f"open({str(tmp_path / 'parents')!r}, 'a').write(f'{{os.getppid()}}\\n')\n"
    )
    (tmp_path / "app.py").write_text(program)
    changes = {"judge": None, "metric": lambda expected, output: float(expected == output)}
    changes["dataset"] = QUESTIONS[:5]  # a process for each call
    command = f"python {tmp_path / 'app.py'} {{input}}"
    result = selected(upstream, app=command, executor=processes, concurrency=2, **changes)
    assert result.bill.total_usd == pytest.approx(paid(upstream))
    parents = set((tmp_path / "parents").read_text().split())
    assert 1 <= len(parents) <= 2
    assert str(os.getpid()) not in parents


@pytest.mark.slow
@pytest.mark.parametrize("who", ["app", "metric"])
def test_what_a_lost_call_has_cost_is_booked_as_lost(upstream, tmp_path, who):
    here = selected(upstream)
    before = paid(upstream)
    changes = {"app": answers, "metric": judges}
    changes[who] = KilledOnce(changes[who], tmp_path, at=20)
    there = selected(upstream, executor=partial(processes, 1), run_dir=tmp_path / "run", **changes)
    (lost,) = there.lost
    assert (lost.failed, lost.paid_usd > 0) == (who, True)
    assert lost.paid_usd == (lost.cost_usd if who == "app" else lost.judge_usd)
    assert list(there.history) == list(here.history)
    assert there.bill.total_usd == pytest.approx(paid(upstream) - before)
    assert (there.bill.lost_usd, there.bill.num_lost) == (lost.paid_usd, 0)


@pytest.mark.slow
def test_a_worker_on_another_machine_cannot_reach_this_one(upstream, monkeypatch):
    """The endpoint listens on 127.0.0.1 unless it is told otherwise."""
    at_home = ("head.example.org", 1)
    monkeypatch.setattr(elsewhere, "_place", lambda: at_home)
    mend = r"the endpoint listens on 127.0.0.1 of head.example.org, which a worker on .* cannot"
    with pytest.raises(InputError, match=f"{mend} reach; give endpoint=Endpoint"):
        selected(upstream, executor=processes)
    assert upstream.served == []


def test_a_query_in_flight_travels_as_its_address():
    query = QueryInFlight("1-ab", "http://10.0.0.5:80", {"plan": "nano"}, "one", "secret")
    make, given = query.__reduce__()
    there = make(*given)
    assert (there.base_url, there.headers, there.env) == (query.base_url, query.headers, query.env)
    assert there.assignment == query.assignment
