"""LLAMBO: the score, and the loop around any LLM."""

import itertools
import json
import math
import statistics
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tables import CountingEvaluator, Crash, make_task

from scope_torch.baselines.llambo import LLAMBO, make_llambo, method_name
from scope_torch.baselines.llambo_prompts import Prompts
from scope_torch.baselines.llambo_score import scores_of, target_cost
from scope_torch.baselines.llm_backends import BackendConfig
from scope_torch.baselines.llm_stub import StubLLM
from scope_torch.baselines.llm_transcript import Replies
from scope_torch.cli.build import build
from scope_torch.cli.compose import compose
from scope_torch.cli.registry import config_dir
from scope_torch.errors import InputError
from scope_torch.runs.runner import run
from scope_torch.space import tie_rank
from scope_torch.testing import OptimizerConformance


class TestStub(OptimizerConformance):
    @pytest.fixture(params=[0.03, 0.6])
    def make_optimizer(self, request):
        backend = BackendConfig(malformed=request.param)
        return lambda problem, seed: make_llambo(problem, seed=seed, backend=backend)


@pytest.mark.parametrize(
    ("best", "costs", "alpha", "expected"),
    [
        (4.0, [4.0, 10.0], 0.1, 3.4),
        (4.0, [4.0, 10.0], -0.2, 5.2),
        (4.0, [4.0, 4.0], 0.1, 3.96),
        (0.1, [0.1, 10.1], 0.1, 0.1 - 10 * 0.1 / 16),  # 1/10, 1/20, ... until positive
        (0.0, [0.0, 1.0], 0.1, 0.0),
    ],
)
def test_target_cost(best, costs, alpha, expected):
    assert target_cost(best, costs, alpha) == pytest.approx(expected)


def normal(z: float) -> float:
    return statistics.NormalDist().cdf(z)


PREDICTIONS = st.lists(
    st.lists(st.tuples(st.floats(0, 2), st.floats(0, 1)), max_size=5), min_size=1, max_size=5
)


@pytest.mark.slow
@given(PREDICTIONS, st.floats(0.01, 2), st.floats(0.1, 0.9))
def test_the_score_is_expected_improvement_times_feasibility(predictions, best, s_0):
    scores = scores_of(predictions, best_cost_usd=best, s_0=s_0, cost_scale_usd=1.0)
    moments = []
    for drawn in filter(None, predictions):
        cost, quality = ([pair[i] for pair in drawn] for i in (0, 1))
        moments.append((statistics.mean(cost), statistics.pstdev(cost),
                        statistics.mean(quality), statistics.pstdev(quality)))  # fmt: skip
    if not moments:
        assert scores == [0.0] * len(predictions)
        return
    average = [statistics.mean(column) for column in zip(*moments, strict=True)]
    known = iter(moments)
    for drawn, score in zip(predictions, scores, strict=True):
        m_c, std_c, m_s, std_s = next(known) if drawn else average
        std_c, std_s = max(std_c, 1e-5), max(std_s, 1e-5 * s_0)
        u = (best - m_c) / std_c
        density = math.exp(-0.5 * u**2) / math.sqrt(2 * math.pi)
        expected = std_c * (u * normal(u) + density) * normal((m_s - s_0) / std_s)
        assert score == pytest.approx(expected, rel=1e-6, abs=1e-9)


class Scripted:
    """An LLM that answers from functions of the prompt; knows how often each kind was asked."""

    kind = "openai"

    def __init__(self, start="", candidate="", prediction="") -> None:
        self.answers = {"start": start, "candidate": candidate, "prediction": prediction}
        self.asked = dict.fromkeys(self.answers, 0)
        self.prompts: list[str] = []

    def complete(self, messages, n, temperature, max_tokens):
        prompt = messages[-1]["content"]
        task = prompt[prompt.index("Task: ") :]
        kind = next(
            kind
            for word, kind in (
                ("predict", "prediction"),
                ("assignments", "start"),
                ("", "candidate"),
            )
            if word in task
        )
        self.asked[kind] += 1
        self.prompts.append(prompt)
        answer = self.answers[kind]
        texts = tuple(answer(task) if callable(answer) else answer for _ in range(n))
        return Replies(texts, 10, 2 * n, 1, 0)

    def settings(self):
        return {"kind": self.kind}


def llambo(task, backend, seed=0, **settings) -> LLAMBO:
    return LLAMBO(task.problem, backend, Prompts(task.problem), seed=seed, **settings)


TASK = make_task(2, (4, 3, 3), 5)


def evaluated(result) -> list[tuple[int, ...]]:
    return list(dict.fromkeys(o.theta for o in result.history))


def in_tie_order(task, seed) -> list[tuple[int, ...]]:
    index = torch.arange(task.problem.space.size)
    order = sorted(index.tolist(), key=tie_rank(index, seed).tolist().__getitem__)
    thetas = [tuple(task.problem.space.unrank(torch.tensor(i)).tolist()) for i in order]
    return [theta for theta in thetas if theta != task.problem.theta_ref]


@pytest.mark.slow
def test_an_llm_that_says_nothing_leaves_the_seeded_order():
    backend = Scripted()
    result = run(TASK.problem, llambo(TASK, backend), TASK.evaluator(), 1e9)
    assert evaluated(result) == in_tie_order(TASK, 0)
    assert result.stop_reason == "every configuration was evaluated"
    report, iterations = result.report, TASK.problem.space.size - 1 - 5
    assert backend.asked["start"] == 4
    assert backend.asked["candidate"] == iterations * 4 * 2
    padded = 5 + sum(min(5, left) for left in range(1, iterations + 1))
    assert report["padded"] == padded
    predictions = 2 * 10 * (padded - 5)
    assert report["llm_malformed"] == 4 + iterations * 4 * 10 + predictions
    assert report["llm_replies"] == report["llm_malformed"]
    assert report["llm_unpredicted_iterations"] == iterations


def position(assignment: dict[str, str]) -> int:
    """Flat index in TASK."""
    return int(TASK.problem.space.rank(torch.tensor(TASK.problem.codes(list(assignment.values())))))


@pytest.mark.slow
def test_the_best_scored_candidate_is_evaluated():
    """An LLM that knows the truth: it proposes in the seeded order and predicts exactly."""
    ordered, prompts = in_tie_order(TASK, 3), Prompts(TASK.problem)
    start = json.dumps([TASK.problem.names(theta) for theta in ordered[:5]])
    proposals = itertools.cycle(ordered)

    def predict(task):
        index = position(json.loads(task.split("\n")[1].removesuffix(" -> ?")))
        return f"## {1000 * TASK.mean_cost[index]:.9g} ; {TASK.mean_quality[index]:.9g} ##"

    backend = Scripted(start, lambda _: f"## {prompts.assignment(next(proposals))} ##", predict)
    result = run(TASK.problem, llambo(TASK, backend), TASK.evaluator(), 1e9)
    assert evaluated(result)[:5] == ordered[:5]
    assert result.report["llm_malformed"] == 0
    assert TASK.mean_cost[position(result.choice)] == pytest.approx(TASK.best_cost)
    # Ten of the 30 others are proposed at a time: a few rounds have seen all of them.
    assert [row for row in result.trace if row.event == "improved"][-1].iteration < 14


def test_repeated_and_evaluated_proposals_are_dropped_and_counted():
    theta = in_tie_order(TASK, 0)[0]
    same = Prompts(TASK.problem).assignment(theta)
    backend = Scripted(f"[{same}, {same}]", f"## {same} ##", "## 1 ; 0.5 ##")
    optimizer = llambo(TASK, backend)
    result = run(TASK.problem, optimizer, TASK.evaluator(), TASK.budget(6.5))
    assert evaluated(result)[0] == theta
    assert len(set(evaluated(result))) == len(evaluated(result))
    assert result.report["llm_repeated"] == 7 + backend.asked["candidate"] * 5
    assert result.report["llm_malformed"] == 0
    assert result.report["padded"] == 4 + 5 * (backend.asked["candidate"] // 8)


def test_history_and_reference_are_shown_in_changing_orders():
    backend = Scripted("", "", "## 1 ; 0.5 ##")
    optimizer = llambo(TASK, backend)
    run(TASK.problem, optimizer, TASK.evaluator(), TASK.budget(9))
    proposals = [p for p in backend.prompts if "feasible -> ?" in p]
    shown = [
        [line for line in p.split("\n") if line.startswith("cost ") and "-> {" in line]
        for p in proposals
    ]
    assert all(len(lines) >= 6 for lines in shown)  # five from the start and theta_0
    assert sorted(shown[0]) == sorted(shown[1])
    assert shown[0] != shown[1]
    evaluation = optimizer.evaluations[0]
    line = (
        f"cost {evaluation.cost_usd * 1000:.6g}, quality "
        f"{TASK.problem.s_0 - evaluation.g:.6g}, "
        f"{'feasible' if evaluation.g <= 0 else 'infeasible'} -> "
        f"{Prompts(TASK.problem).assignment(evaluation.theta)}"
    )
    assert line in shown[0]


@pytest.mark.parametrize("sizes", [(1, 1), (2,), (1, 3)])
def test_small_spaces_are_evaluated_to_the_end(sizes):
    task = make_task(0, sizes, 2)
    result = run(task.problem, make_llambo(task.problem, seed=0), task.evaluator(), 1e9)
    assert len(evaluated(result)) == task.problem.space.size - 1
    backend = Scripted()
    run(task.problem, llambo(task, backend), task.evaluator(), 1e9)
    assert bool(backend.prompts) == (task.problem.space.size > 1)


def test_the_bill_of_the_llm_is_apart():
    backend = Scripted()
    optimizer = llambo(TASK, backend, price_usd=(2.0, 10.0))
    result = run(TASK.problem, optimizer, TASK.evaluator(), TASK.budget(7))
    report, prompts = result.report, sum(backend.asked.values())
    assert report["llm_prompts"] == report["llm_requests"] == prompts
    assert report["llm_prompt_tokens"] == 10 * prompts
    assert report["llm_completion_tokens"] == 2 * report["llm_replies"]
    bill = (2.0 * report["llm_prompt_tokens"] + 10.0 * report["llm_completion_tokens"]) / 1e6
    assert report["llm_cost_usd"] == pytest.approx(bill)
    spend_usd = sum(one.cost_usd for one in result.history)
    assert result.summary()["spend_usd"] == pytest.approx(spend_usd, rel=1e-12)
    optimizer = llambo(TASK, Scripted())
    optimizer.ask()
    assert optimizer.report()["llm_cost_usd"] is None


def test_the_stand_in_is_never_called_llambo():
    assert (method_name("stub"), method_name("openai"), method_name("replay")) == (
        "LLAMBO[stub]",
        "llambo",
        "llambo",
    )
    assert make_llambo(TASK.problem, seed=0).name == "LLAMBO[stub]"
    named = make_llambo(TASK.problem, seed=0, name="LLAMBO[stub]-20")
    assert named.settings()["name"] == named.name == "LLAMBO[stub]-20"
    assert make_llambo(TASK.problem, seed=0, backend={"kind": "openai"}).name == "llambo"
    with pytest.raises(InputError, match="name='llambo' hides"):
        make_llambo(TASK.problem, seed=0, name="llambo")
    result = run(TASK.problem, make_llambo(TASK.problem, seed=0), TASK.evaluator(), TASK.budget(2))
    assert result.summary()["method"] == "LLAMBO[stub]"
    assert result.summary()["llm_backend"] == "stub"


@pytest.mark.parametrize(
    ("override", "name"),
    [("stub", "LLAMBO[stub]"), ("openai", "llambo"), ("replay", "llambo")],
)
def test_the_config_is_named_after_the_backend(override, name):
    from scope_torch.cli.compose import compose

    cfg = compose(["method=llambo", f"method.backend.kind={override}"])
    assert cfg.method.name == name


@pytest.mark.slow
def test_config_files_build_the_methods():
    import inspect

    from hydra import compose, initialize_config_dir

    from scope_torch.cli.registry import config_dir
    from scope_torch.cli.run import build

    for method in ("llambo", "llmselector", "abacus"):
        with initialize_config_dir(config_dir(), version_base="1.3"):
            cfg = compose("config", overrides=[f"method={method}"])
        optimizer = build(cfg.method, problem=TASK.problem, seed=3, kernel=None, device=None)
        assert optimizer.name == cfg.method.name
        built, plain = optimizer.settings(), type(optimizer)
        if method == "llambo":
            assert built == make_llambo(TASK.problem, seed=3).settings()
            keys = {
                *inspect.signature(plain).parameters,
                *inspect.signature(make_llambo).parameters,
            }
            assert set(cfg.method) - {"_target_"} <= keys
        else:
            assert built == plain(TASK.problem, seed=3).settings()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_init": 0}, "n_init=0 must be a whole number >= 1"),
        ({"num_predictions": 2.5}, "num_predictions=2.5 must be a whole number"),
        ({"num_candidates": "3"}, "num_candidates='3' must be a whole number"),
        ({"num_retries": -1}, "num_retries=-1"),
        ({"num_predictions": 0}, "num_predictions=0"),
        ({"alpha": 2.0}, r"alpha=2.0 must lie in \[-1, 1\]"),
        ({"alpha": math.nan}, "alpha=nan"),
        ({"prices": {"llm0": [1.0]}}, "prices: 'llm0' has .* give"),
        ({"prices": {"llm0": [1.0, -1.0]}}, "prices: 'llm0'"),
        ({"prices": {"llm0": "ab"}}, "prices: 'llm0'"),
        ({"backend": {"kinds": 1}}, "backend has no key 'kinds'"),
    ],
)
def test_settings_outside_their_range_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        make_llambo(TASK.problem, seed=0, **settings)


def test_without_a_key_nothing_is_spent(monkeypatch, tmp_path):
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    backend = {"kind": "openai", "api_key_env": "NO_SUCH_KEY"}
    evaluator = CountingEvaluator(TASK)
    optimizer = make_llambo(TASK.problem, seed=0, backend=backend)
    with pytest.raises(InputError, match=r"^\$NO_SUCH_KEY is not set.*$"):
        run(TASK.problem, optimizer, evaluator, 1.0, run_dir=tmp_path)
    assert not evaluator.paid


class Moody:
    """A client whose replies never repeat, in place of the one that uses HTTP."""

    base_url = "http://127.0.0.1/v1"
    count = 0

    def complete(self, body, n):
        rng_seed = Moody.count = Moody.count + 1
        stub = StubLLM(rng_seed, malformed=0.1)
        reply = stub.complete(body["messages"], n, 1.0, 10)
        return Replies(reply.texts, 5, 1, 1, 0)


@pytest.mark.slow
def test_a_transcript_makes_runs_with_a_real_llm_resumable(tmp_path):
    def search(evaluator, run_dir, transcript, kind="openai"):
        backend = {"kind": kind, "transcript": transcript and str(tmp_path / transcript)}
        optimizer = make_llambo(TASK.problem, seed=4, backend=backend)
        if kind == "openai":
            optimizer._backend._client = Moody()  # type: ignore[attr-defined]
        return run(TASK.problem, optimizer, evaluator, TASK.budget(9.3), run_dir=run_dir)

    with pytest.raises(Crash):
        search(CountingEvaluator(TASK, crash_after=40), tmp_path / "run", "t.jsonl")
    resumed = search(CountingEvaluator(TASK), tmp_path / "run", "t.jsonl")
    assert resumed.replayed == 40
    asked = Moody.count
    again = search(CountingEvaluator(TASK), tmp_path / "again", "t.jsonl")
    assert again.recommendation == resumed.recommendation
    assert again.trace == resumed.trace
    assert again.report == resumed.report
    assert Moody.count == asked  # nothing is asked, nor billed, twice
    replayed = search(CountingEvaluator(TASK), tmp_path / "replay", "t.jsonl", "replay")
    assert list(replayed.history) == list(resumed.history)
    assert replayed.method == "llambo"
    with pytest.raises(Crash):
        search(CountingEvaluator(TASK, crash_after=40), tmp_path / "none", None)
    with pytest.raises(InputError, match="that this search does not ask for"):
        search(CountingEvaluator(TASK), tmp_path / "none", None)


YOURS = ("table", "matrix", "synthetic")  # tasks of which nobody knows, or that are no system
_FOLDER = Path(config_dir(), "task")
_NAMES = (p.relative_to(_FOLDER).with_suffix("").as_posix() for p in _FOLDER.rglob("*.yaml"))
TASKS = sorted(name for name in _NAMES if name not in YOURS)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if i % 3 else ()) for i, name in enumerate(TASKS)],
)
def test_prompts_describe_the_system_and_the_data_of_a_task(name, tmp_path):
    """Metadata of the compound AI system and the data set (appendix, adaptation details)."""
    transcript = f"method.backend.transcript={tmp_path / 't.jsonl'}"
    cfg = compose([f"task={name}", "method=llambo", "method.backend.kind=openai", transcript])
    system, dataset = cfg.description.system, cfg.description.dataset
    assert min(len(system), len(dataset)) > 50
    optimizer = build(cfg.method, problem=TASK.problem, seed=0)
    for prompt in (
        optimizer._prompts.warm_start(3),
        optimizer._prompts.candidate([], 0.1),
        optimizer._prompts.predict([], TASK.problem.theta_ref),
    ):
        assert f"System: {system}\n" in prompt[-1]["content"]
        assert f"Data set: {dataset}; {TASK.problem.num_queries} queries." in prompt[-1]["content"]
    own = compose(
        [f"task={name}", "method=llambo", "method.backend.kind=openai", "method.system=x"]
    )
    assert (own.method.system, own.method.dataset) == ("x", dataset)


@pytest.mark.slow
def test_the_stand_in_reads_no_description():
    """Its replies are drawn by the text of the prompt, so its runs stay what they were."""
    settings = [
        build(compose([f"task={name}", "method=llambo"]).method, problem=TASK.problem, seed=0)
        for name in ("synthetic", "hotpotqa")
    ]
    assert settings[0].settings() == settings[1].settings()
    assert settings[0].settings()["system"] == settings[0].settings()["dataset"] == ""
