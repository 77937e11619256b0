"""Candidates that cannot be observed on every query: Calibrate, certificates, what is left out."""

from dataclasses import replace

import numpy as np
import pytest
from tables import make_task

from scope_torch.bounds.betting import BettingSequence, share_of_delta
from scope_torch.errors import InputError
from scope_torch.evaluators.table import RecordedTable, TableEvaluator
from scope_torch.methods import make_scope, make_scope_joint
from scope_torch.observation import Observation
from scope_torch.runs.runner import run
from scope_torch.search.calibrate import calibrate
from scope_torch.search.certificate import BySequence
from scope_torch.search.holes import Holes
from scope_torch.search.known import Known
from scope_torch.search.population import ByPopulation
from scope_torch.tasks.synthetic import synthetic_task

PROBLEM = synthetic_task(num_queries=20, epsilon=0.2).problem
THETA = (0, 1)


def with_holes(queries, theta=THETA):
    return replace(PROBLEM, offered={theta: queries})


@pytest.mark.parametrize(
    ("offered", "text"),
    [
        ({THETA: [0, 20]}, r"the queries \[0, 20\]...; give some of 0 to 19"),
        ({THETA: []}, "or do not allow it"),
        ({(9, 9): [1]}, "offered=.* is not a configuration"),
        ({PROBLEM.theta_ref: range(19)}, "theta_0, .* can be observed on 19 of 20 queries"),
    ],
)
def test_refusals(offered, text):
    with pytest.raises(InputError, match=text):
        replace(PROBLEM, offered=offered)


def test_queries_of_a_configuration():
    problem = with_holes([7, 3, 3])
    assert problem.offered == {THETA: (3, 7)}
    assert problem.queries_of(THETA) == (3, 7)
    assert list(problem.queries_of((0, 0))) == list(range(20))
    assert replace(PROBLEM, offered={THETA: range(20)}).offered == {}


def test_calibrate_takes_as_many_of_its_own_queries():
    pool, own = [(0, 0), (0, 1), (1, 0)], {(0, 0): [4], (0, 1): [0, 2, 4], (1, 0): range(5)}
    rounds = calibrate(pool, [4, 3, 2, 1, 0], queries_of=own.__getitem__)
    asked = [[(r.theta, r.query) for r in next(rounds)]]
    while True:
        quality = {(0, 0): 0.9, (0, 1): 0.8, (1, 0): 0.1}
        told = [Observation(theta, q, 0.1, quality[theta]) for theta, q in asked[-1]]
        try:
            asked.append([(r.theta, r.query) for r in rounds.send(told)])
        except StopIteration:
            break
    assert asked[0] == [((0, 0), 4), ((0, 1), 4), ((1, 0), 4)]
    # The averages decide: (0, 0) has no second query, and is the better one of the two that stay.
    assert asked[1:] == [[((0, 1), 2)]]  # a round without a question is the last


def test_a_missing_answer_counts_as_the_worst():
    """The sequence takes in a 0 where the order comes to a query that cannot be observed."""
    problem = with_holes(range(17))
    certificate = BySequence(problem, 0.1)
    import torch

    test = certificate.begin(1, torch.Generator().manual_seed(5))
    order = list(test.order or ())
    trial = Known(problem).trial(THETA, test, range(20))
    assert trial.order == [query for query in order if query < 17]
    naive = BettingSequence(20, problem.s_0, share_of_delta(1, 0.1))
    expected = [naive.update(1.0 if query < 17 else 0.0) for query in order]
    certified = trial.begin(1.0)
    for query in trial.order:
        certified = trial.update((1.0,), 1.0)
        taken = order.index(query) + 1
        while taken < 20 and order[taken] >= 17:
            taken += 1
        assert certified == expected[taken - 1]
    assert certified  # 17 of 20 is above s_0


def test_a_population_counts_it_too():
    problem = with_holes(range(17))
    certificate = ByPopulation(problem, 0.1, seed=0)
    certificate.select(THETA)
    test = certificate.begin(1, None)  # pyright: ignore[reportArgumentType]
    for query in range(17):
        certificate.record(Observation(THETA, query, 0.1, 1.0))
        test.update((1.0,), 1.0)
    stream = certificate._streams[THETA]
    assert [stream.answers[query] for query in (17, 18, 19)] == [0.0] * 3
    assert len(stream._differences) == 20


class Told:
    def __init__(self):
        self.left = []

    def restrict(self, allowed):
        self.left.append(allowed)


def test_what_can_never_be_certified_is_left_out():
    s_0 = PROBLEM.s_0
    few, enough = int(s_0 * 20), int(s_0 * 20) + 1
    offered = {(0, 1): range(few), (0, 2): range(enough)}
    problem, told = replace(PROBLEM, offered=offered), Told()
    holes = Holes(problem, told)
    holes.begin(BySequence(problem, 0.1))
    (left,) = told.left
    assert not left((0, 1))
    assert left((0, 2))
    assert left((0, 0))
    holes.observed((0, 2), enough - 1)
    holes.observed((0, 0), 20)  # it has no holes
    assert len(told.left) == 1
    holes.observed((0, 2), enough)
    assert not told.left[-1]((0, 2))
    assert not told.left[-1]((0, 1))
    assert int(told.left[-1].mask.sum()) == PROBLEM.space.size - 2


def test_a_candidate_is_repeated_once_all_of_its_queries_were_answered_ten_times():
    holes = Holes(with_holes(range(5)), Told())
    for number in range(50):
        assert not holes.is_repeated(THETA)
        holes.record(Observation(THETA, number % 5, 0.1, 1.0))
    assert holes.is_repeated(THETA)
    assert not holes.is_repeated((0, 0))


@pytest.mark.parametrize(("width_c", "width_g", "narrow"), [(9, 9, 1), (11, 9, 0), (9, 11, 0)])
def test_bounds_are_narrow_below_a_thousandth(width_c, width_g, narrow):
    """Of c(theta_0), and of a quality of 1."""
    usd = 1e-4 * PROBLEM.reference_cost_usd
    bounds = {"lower_c_usd": usd, "upper_c_usd": usd * (1 + width_c)}
    bounds |= {"lower_g": -1e-4, "upper_g": 1e-4 * (width_g - 1)}
    assert Holes(PROBLEM, Told()).is_narrow(bounds) == narrow


@pytest.mark.parametrize(
    "seed", [*range(5), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(5, 20))]
)
@pytest.mark.parametrize("make", [make_scope, make_scope_joint])
def test_flattering_holes_never_certify(seed, make):
    """Only queries that are answered well were recorded: what was not, counts as answered badly."""
    task = make_task(seed, (3, 3), 40, False)
    table = task.evaluator().table
    quality, cost = table.quality.copy(), table.cost_usd.copy()
    hidden = (quality == 0) & (np.random.default_rng(seed).uniform(size=quality.shape) < 0.9)
    hidden[task.problem.theta_ref] = False
    cost[hidden] = quality[hidden] = np.nan
    partial = RecordedTable(table.modules, table.llms, table.queries, cost, quality, partial=True)
    names = list(task.problem.names(task.problem.theta_ref).values())
    problem = partial.problem("flattering", names, 0.1)
    base = [llms[0] for llms in problem.llms]
    how = {"certificate": "sequence", "bounds": {"delta": 0.01}}
    if make is make_scope:
        how["bounds"] = {"mode": "tuned", "delta": 0.01}
    search = make(problem, base=base, seed=seed, **how)
    result = run(problem, search, TableEvaluator(partial), 1e9)
    out = result.recommendation
    if out.basis == "certified":
        assert float(table.quality[out.theta].mean()) >= problem.s_0


def test_as_many_rows_as_the_threshold_asks_for_are_enough():
    """0.8 of 5 right answers of 7 is 4 of 7, but not in float64."""
    quality = np.array([[1, 1, 1, 1, np.nan, np.nan, np.nan], [1, 1, 1, 1, 1, 0, 0]])
    cost = np.where(np.isnan(quality), np.nan, np.array([[0.001], [0.01]]))
    llms = (("mini", "pro"),)
    table = RecordedTable(("answer",), llms, tuple("abcdefg"), cost, quality, partial=True)
    problem = table.problem("edge", reference=["pro"], epsilon=0.2)
    assert problem.s_0 * 7 > 4
    search = make_scope_joint(problem, base="mini")
    result = run(problem, search, TableEvaluator(table), budget_usd=1.0)
    assert result.choice == {"answer": "mini"}
    assert result.certified
