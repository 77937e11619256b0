"""Other libraries behind ask and tell; those that are not installed are skipped."""

import importlib
import os
import sys
from dataclasses import replace

import pytest
from long_runs import among_others, only_long

import scope_torch as st
from benchmarks.peers import MOST_REPEATS, PEERS, BoTorchPeer, make_peer
from benchmarks.results.cells import CHOSEN, CHOSEN_ON_RECORDINGS
from benchmarks.results.experiments import experiments
from scope_torch.tasks.synthetic import synthetic_task

NEEDED = {"smac": "smac", "ax": "ax", "optuna_tpe": "optuna", "optuna_nsga2": "optuna"}
FAST = ("optuna_tpe", "optuna_nsga2")


@pytest.fixture(autouse=True)
def _libraries(monkeypatch):
    """SMAC3 and Ax lie apart, in a folder that only these tests know."""
    if folder := os.environ.get("SCOPE_PEERS"):
        monkeypatch.setattr(sys, "path", [folder, *sys.path])


def search(peer, budget_usd=2.0, **options):
    if peer.split()[0] in NEEDED:
        pytest.importorskip(NEEDED[peer.split()[0]])
    task = synthetic_task(num_queries=20, **options)
    optimizer = make_peer(peer, task.problem, 3)
    return task, optimizer, st.run(task.problem, optimizer, task.evaluator, budget_usd)


@pytest.mark.parametrize(
    "peer", [*FAST, *(pytest.param(p, marks=pytest.mark.slow) for p in ("botorch", "smac", "ax"))]
)
@pytest.mark.filterwarnings("ignore")  # SMAC3 and Ax warn of what they use
def test_a_peer_searches(peer):
    start = "population=4" if peer == "optuna_nsga2" else "n_startup=3"
    budget_usd = 0.7 if peer == "ax" else 1.0  # which takes its time
    task, optimizer, result = search(f"{peer} {start}", budget_usd)
    summary = result.summary()
    assert summary["feasible"]
    if peer != "ax":  # for which a few trials must do
        assert result.choice != task.problem.names(task.problem.theta_ref)
    tried = [e.theta for e in optimizer.evaluations]
    last = max(e.cost_usd for e in optimizer.evaluations) * 20
    assert result.history.spend_usd < budget_usd + last + task.problem.reference_cost_usd
    again = search(f"{peer} {start}", budget_usd)[1]
    assert [e.theta for e in again.evaluations] == tried
    assert len(set(tried)) >= 2


@pytest.mark.parametrize("peer", [*FAST, "botorch", *map(among_others, ("smac", "ax"))])
@pytest.mark.filterwarnings("ignore")
@pytest.mark.slow
def test_only_what_is_on_the_list_is_tried(peer):
    if peer in NEEDED:
        pytest.importorskip(NEEDED[peer])
    task = synthetic_task(num_queries=20)
    problem = task.problem
    listed = [problem.theta_ref, (0, 0), (1, 4), (4, 1), (3, 3), (0, 5), (5, 0)]
    if peer == "ax":  # takes 10 s for each that is not on the list; (2, 4) comes first
        everything = map(problem.space.theta_at, range(problem.space.size))
        listed = [theta for theta in everything if sum(theta) % 4 != 2]
    problem = replace(problem, allowed=listed)
    optimizer = make_peer(
        f"{peer} {'population' if 'nsga2' in peer else 'n_startup'}=3", problem, 3
    )
    st.run(problem, optimizer, task.evaluator, 1.5)
    tried = {e.theta for e in optimizer.evaluations}
    assert len(tried) >= 3
    assert tried <= set(listed)


@pytest.mark.parametrize(
    "peer",
    [
        "optuna_tpe n_startup=3 constant_liar=1",
        pytest.param("ax n_startup=3", marks=[pytest.mark.slow, only_long]),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_trials_in_parallel_are_asked_for_before_one_is_told(peer):
    if (name := peer.split()[0]) in NEEDED:
        pytest.importorskip(NEEDED[name])
    task = synthetic_task(num_queries=7)
    optimizer = make_peer(f"{peer} trials=3", task.problem, 3)
    asked = []
    ask = optimizer.ask
    optimizer.ask = lambda: asked.append(requests := ask()) or requests
    st.run(task.problem, optimizer, task.evaluator, 0.2 if name == "ax" else 0.5)  # 10 s a trial
    assert {len(requests) for requests in asked if requests} == {21}
    by_trial = [[r.theta for r in requests[i : i + 7]] for requests in asked for i in (0, 7, 14)]
    assert all(len({*thetas}) <= 1 for thetas in by_trial)
    tried = [e.theta for e in optimizer.evaluations]
    assert tried == [thetas[0] for thetas in by_trial if thetas][: len(tried)]


@pytest.mark.slow
@pytest.mark.parametrize("peer", ["smac", among_others("ax")])
@pytest.mark.filterwarnings("ignore")
def test_a_peer_that_has_tried_all_ends(peer):
    _, optimizer, result = search(f"{peer} n_startup=2", budget_usd=20.0, num_modules=1)
    assert len({e.theta for e in optimizer.evaluations}) >= 5
    assert result.history.spend_usd < 20.0
    assert result.stop_reason == "nothing new is asked for"


@pytest.mark.slow
@pytest.mark.parametrize("peer", ["optuna_tpe n_startup=2", "optuna_nsga2 population=2"])
@pytest.mark.filterwarnings("ignore")
def test_nothing_is_asked_twice(peer):
    """Optuna suggests configurations again: it is told their answers again, for nothing."""
    pytest.importorskip("optuna")
    _, optimizer, result = search(peer, budget_usd=20.0, num_modules=1)
    tried = [e.theta for e in optimizer.evaluations]
    assert len(tried) == len(set(tried)) >= 3
    assert optimizer.problem.theta_ref not in tried
    assert result.stop_reason == "nothing new is asked for"
    trials = optimizer._peer._study.get_trials()
    assert len(trials) >= len(tried) + MOST_REPEATS
    told = {(*trial.params.values(), trial.value) for trial in trials if trial.value is not None}
    assert len(told) == len(tried) + 1  # and theta_0


@pytest.mark.slow
def test_every_configuration_is_tried_if_the_budget_is_large():
    """BoTorch chooses among what was not tried, so it ends at the optimum."""
    task = synthetic_task(num_queries=20, num_modules=1)
    costs, _ = task.evaluator.truth()
    every_usd = 20 * float(costs.sum())
    _, optimizer, result = search("botorch n_startup=2", budget_usd=every_usd, num_modules=1)
    tried = {task.problem.theta_ref, *(e.theta for e in optimizer.evaluations)}
    assert len(tried) == task.problem.space.size
    summary = result.summary()
    assert summary["true_cost_usd"] == pytest.approx(summary["optimal_cost_usd"])


def test_theta_0_is_a_first_trial_for_nothing():
    told = []

    class Told(BoTorchPeer):
        def tell(self, theta, cost, g):
            told.append((theta, cost, g))
            super().tell(theta, cost, g)

    task = synthetic_task(num_queries=20)
    optimizer = make_peer("botorch", task.problem, 0)
    optimizer._peer = Told(task.problem, 0)
    st.run(task.problem, optimizer, task.evaluator, 0.5)
    problem = task.problem
    epsilon_g = -problem.epsilon * problem.reference_quality / problem.s_0
    assert told[0] == (problem.theta_ref, 1.0, pytest.approx(epsilon_g))
    first = optimizer.evaluations[0]
    assert told[1] == (
        first.theta,
        pytest.approx(first.cost_usd / problem.reference_cost_usd),
        pytest.approx(first.g / problem.s_0),
    )


def test_neighbours_of_the_best_are_among_the_choices(monkeypatch):
    monkeypatch.setattr("benchmarks.peers.MOST_CHOICES", 3)
    task = synthetic_task(num_modules=3)
    peer = BoTorchPeer(task.problem, 0)
    peer.tell((0, 1, 2), 0.5, -0.1)
    peer.tell((1, 1, 1), 0.1, 0.2)  # cheaper, and not feasible
    chosen = {tuple(row) for row in peer._choices().tolist()}
    assert {(0, 1, code) for code in range(6)} - {(0, 1, 2)} <= chosen
    assert not {(0, 1, 2), (1, 1, 1)} & chosen


def test_a_missing_library_is_named(monkeypatch):
    real = importlib.import_module

    def without(name, *rest):
        if name == "optuna":
            raise ImportError("No module named 'optuna'")
        return real(name, *rest)

    monkeypatch.setattr(importlib, "import_module", without)
    with pytest.raises(st.errors.InputError, match=r"pip install 'scope-torch\[peers\]'"):
        make_peer("optuna_tpe", synthetic_task().problem, 0)


@pytest.mark.parametrize(
    ("file", "chosen_of"),
    [("peers_tuning", CHOSEN), ("peers_tuning_recorded", CHOSEN_ON_RECORDINGS)],
)
def test_the_chosen_settings_are_the_best_of_the_committed_grid(file, chosen_of):
    from benchmarks.results.planned import read_rows
    from benchmarks.results.summary import geometric_mean
    from benchmarks.results.write import RESULTS

    rows = read_rows(RESULTS / f"{file}.csv")
    tuned = {cell.method for cell in experiments()[file]}
    too_slow = {"ax"} if file == "peers_tuning" else set()
    assert {chosen for name, chosen in chosen_of.items() if name not in too_slow} <= tuned
    assert set(chosen_of) == set(PEERS)
    for name, chosen in chosen_of.items():
        groups = {row["method"]: [] for row in rows if row["method"].startswith(f"{name} ")}
        assert bool(groups) == (name not in too_slow)
        for row in rows:
            if row["method"] in groups:
                groups[row["method"]].append(row)
        if groups:
            assert len({len(of) for of in groups.values()}) == 1  # the whole grid
            least = min(map(geometric_mean, groups.values()))
            assert geometric_mean(groups[chosen]) <= least * (1 + 1e-9)
