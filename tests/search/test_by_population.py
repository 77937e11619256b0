"""Certificates about tomorrow's queries in a search."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from flips import Flipped

from scope_torch.bounds.population import PairedSequence, least_mean
from scope_torch.bounds.repeats import Repeats
from scope_torch.errors import InputError
from scope_torch.methods import make_scope, make_scope_joint
from scope_torch.observation import Observation
from scope_torch.runs.runner import run
from scope_torch.search.parts import FollowsSearch
from scope_torch.search.population import ByPopulation, compared_with, random_order, share_of_each
from scope_torch.tasks.synthetic import synthetic_task

TASK = synthetic_task(num_queries=200, epsilon=0.1)
PROBLEM = TASK.problem
ANY = torch.Generator()
THETA = (0, 0)


def answer(certificate, theta, query, quality):
    certificate.record(Observation(theta, query, 0.001, quality))


def begun(certificate, theta=THETA):
    certificate.select(theta)
    return certificate.begin(1, ANY)


def differences(qualities, order, problem=PROBLEM):
    references = [quality for _, quality in problem.reference_answers]
    return [qualities[q] - 0.9 * references[q] for q in order]


def wanting(quality, answers):
    """A problem whose threshold is a number, or a share of a reference with these answers."""
    return replace(
        PROBLEM,
        epsilon=None,
        constraints=(quality,),
        num_queries=len(answers),
        reference_quality=float(answers.mean()),
        reference_answers=tuple((PROBLEM.reference_cost_usd, float(one)) for one in answers),
    )


@pytest.mark.slow
def test_a_least_quality_does_not_depend_on_the_queries_that_were_drawn():
    """Both answer alike, with an expected quality of 0.795: below 0.8, however the draw came."""
    rng, wrong = np.random.default_rng(0), 0
    for _ in range(120):
        answers = (rng.random(600) < 0.795).astype(float)
        if answers.mean() < 0.8:  # no problem: the reference itself is not good enough
            continue
        certificate = ByPopulation(wanting("quality >= 0.8", answers), 0.05, 0)
        for query, quality in enumerate(answers):
            answer(certificate, THETA, query, quality)
        wrong += begun(certificate).update((), 0.0)
    assert wrong <= 3  # delta is shared by many configurations
    answers[:] = 1.0
    assert compared_with(wanting("quality >= 0.8", answers))[0] == pytest.approx(0.2)
    assert set(compared_with(wanting("quality >= 0.8", answers))[1]) == {1.0}
    loss, of = compared_with(wanting("quality >= 0.8 * reference", answers))
    assert (loss, of) == (pytest.approx(0.2), answers.tolist())


def test_the_shares_add_up_to_delta():
    others = PROBLEM.space.size - 1
    assert sum(share_of_each(PROBLEM, 0.05) for _ in range(others)) == pytest.approx(0.05)


def test_orders_depend_on_seed_and_configuration_alone():
    orders = {
        tuple(random_order(PROBLEM, theta, seed))
        for theta in ((0, 0), (0, 1))
        for seed in (0, 1, -1)
    }
    assert len(orders) == 6
    assert all(sorted(order) == list(range(200)) for order in orders)
    certificate = ByPopulation(PROBLEM, 0.05, 1)
    answer(certificate, (3, 3), 5, 1.0)
    assert begun(certificate).order == random_order(PROBLEM, THETA, 1)


def test_the_bet_is_on_paired_answers_in_that_order():
    certificate, order = ByPopulation(PROBLEM, 0.05, 0), random_order(PROBLEM, THETA, 0)
    test = begun(certificate)
    qualities = [float(q % 7 > 0) for q in range(200)]
    expected = PairedSequence(0.1, 0.05 / 35)
    told = []
    for query, d in zip(order, differences(qualities, order), strict=True):
        answer(certificate, THETA, query, qualities[query])
        told.append(test.update(qualities[query], 1.0))
        assert told[-1] == expected.update(d)
    assert (told[0], told[-1]) == (False, True)


def test_first_answers_count_also_those_of_calibrate():
    """Answers that were known before are asked for last, and count where they come in the order."""
    certificate, order = ByPopulation(PROBLEM, 0.05, 0), random_order(PROBLEM, THETA, 0)
    for query in (order[1], order[3]):
        answer(certificate, THETA, query, 1.0)
    test = begun(certificate)
    assert test.order == [order[0], order[2], *order[4:], order[1], order[3]]
    expected = PairedSequence(0.1, 0.05 / 35)
    for d in differences([1.0] * 200, order[:4]):
        expected.update(d)
    for query in (order[0], order[2]):
        answer(certificate, THETA, query, 1.0)
        test.update(1.0, 0.0)
    stream = certificate._streams[THETA]
    assert stream.sequence.log_capital == expected.log_capital
    answer(certificate, THETA, order[0], 0.0)  # a later answer to a query does not count
    test.update(0.0, 0.0)
    assert stream.sequence.log_capital == expected.log_capital


def test_answers_out_of_order_wait():
    certificate, order = ByPopulation(PROBLEM, 0.05, 0), random_order(PROBLEM, THETA, 0)
    test = begun(certificate)
    for query in order[1:]:
        answer(certificate, THETA, query, 1.0)
        assert not test.update(1.0, -1.0)
    answer(certificate, THETA, order[0], 1.0)
    assert test.update(1.0, 1.0)


def test_a_configuration_that_is_selected_again_goes_on():
    certificate, order = ByPopulation(PROBLEM, 0.05, 0), random_order(PROBLEM, THETA, 0)
    test = begun(certificate)
    for query in order[:30]:
        answer(certificate, THETA, query, 1.0)
        test.update(1.0, 0.0)
    again = begun(certificate)
    assert again.order == order[30:] + order[:30]
    assert certificate._streams[THETA].sequence.log_capital > 0


def test_a_candidate_that_answered_all_in_vain_is_not_tried_again():
    certificate = ByPopulation(PROBLEM, 0.05, 0)
    least = least_mean(200, 0.1, 0.05 / 35)
    assert certificate.next_margin() == begun(certificate).margin == least
    qualities = [quality for _, quality in PROBLEM.reference_answers]
    qualities = [1 - s if q % 9 == 0 else s for q, s in enumerate(qualities)]
    for query, quality in enumerate(qualities):
        answer(certificate, THETA, query, quality)
    assert not begun(certificate).update(0.0, 0.0)
    shown = sum(differences(qualities, range(200))) / 200
    assert certificate.next_margin() == pytest.approx(max(least, shown + 0.5 / 200))
    before = certificate.next_margin()
    assert begun(certificate).margin > before


def test_the_report_names_the_closest_candidate():
    certificate = ByPopulation(PROBLEM, 0.05, 0)
    assert certificate.report()["closest"] is None
    for theta, ones in (((0, 0), 10), ((0, 1), 12), ((1, 1), 5)):
        test = begun(certificate, theta)
        for t, query in enumerate(random_order(PROBLEM, theta, 0)[:20]):
            answer(certificate, theta, query, float(t < ones))
            test.update(0.0, 0.0)
    qualities = {q: float(t < 12) for t, q in enumerate(random_order(PROBLEM, (0, 1), 0)[:20])}
    d = differences(qualities, qualities)
    closest = certificate.report()["closest"]
    assert closest["theta"] == PROBLEM.names((0, 1))
    assert (closest["more_queries"] is None) == (sum(d) <= 0)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"reference_answers": None}, "reference_answers=None"),
        ({"delta": 0.0}, "delta=0.0 must lie in"),
    ],
)
def test_refuses(changed, words):
    delta = changed.pop("delta", 0.05)
    with pytest.raises(InputError, match=words):
        ByPopulation(replace(PROBLEM, **changed), delta, 0)


@pytest.mark.parametrize("make", [make_scope, make_scope_joint])
@pytest.mark.parametrize("flips", [None, 0.1, Repeats((1.0, 0.0), (1.0, 1.0))])
def test_it_holds_however_answers_vary(make, flips):
    """What is said about flips changes nothing: each answer is a draw."""
    settings = {"base": "small", "certificate": "population"}
    plain, told = make(PROBLEM, **settings), make(PROBLEM, **settings, certificate_flips=flips)
    assert told.settings() == plain.settings()
    assert not told.rules.known.answers_vary


@pytest.mark.slow
@pytest.mark.parametrize(("make", "flips"), [(make_scope, 0.1), (make_scope_joint, 0.0)])
def test_searches(make, flips):
    """Certified if and only if the result's own lower bound is at least 0."""
    bases = []
    for seed in range(2):
        optimizer = make(
            PROBLEM, base="nano", seed=seed, certificate="population", bounds={"delta": 0.05}
        )
        assert optimizer.settings()["population_delta"] == 0.05
        evaluator = Flipped(TASK.evaluator, flips, seed)
        result = run(PROBLEM, optimizer, evaluator, budget_usd=4.0)
        told = result.summary()["population"]
        bases.append(result.recommendation.basis)
        if bases[-1] == "certified":
            assert told["quality_difference"][0] >= 0
            assert told["more_queries"] == 0
        else:
            assert told["reason"] == "theta_out is the reference"
        assert any("independent draws" in line for line in result.report["assumptions"])
    assert "certified" in bases or flips > 0


@pytest.mark.slow
def test_batches_are_certified_too():
    settings = {"certificate": "population", "bounds": {"delta": 0.05}}
    made = [make_scope(PROBLEM, base="nano", batch_size=size, **settings) for size in (32, None)]
    results = [run(PROBLEM, one, TASK.evaluator, budget_usd=20.0) for one in made]
    assert {result.recommendation.basis for result in results} == {"certified"}


@pytest.mark.slow
def test_a_run_that_was_interrupted_ends_the_same(tmp_path):
    def search(budget_usd, **where):
        optimizer = make_scope_joint(PROBLEM, base="nano", certificate="population")
        return run(PROBLEM, optimizer, TASK.evaluator, budget_usd, **where)

    whole = search(2.0, run_dir=tmp_path)
    lines = (tmp_path / "journal.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "journal.jsonl").write_text("".join(lines[: len(lines) // 2]))
    (tmp_path / "result.json").unlink()
    again = search(2.0, run_dir=tmp_path)
    assert again.replayed > 0
    assert again.summary()["population"] == whole.summary()["population"]
    assert again.summary()["closest"] == whole.summary()["closest"]


def test_other_certificates_need_not_follow():
    plain = make_scope(PROBLEM, base="nano")
    assert plain.rules._follows is None
    assert isinstance(ByPopulation(PROBLEM, 0.05, 0), FollowsSearch)


def test_other_answers_of_the_reference_are_another_run():
    def settings(problem):
        return make_scope_joint(problem, base="nano", certificate="population").settings()

    first, *others = PROBLEM.reference_answers
    swapped = replace(PROBLEM, reference_answers=(*others, first))
    assert settings(PROBLEM) != settings(swapped)
    assert settings(PROBLEM) == settings(replace(PROBLEM))


LARGE = synthetic_task(num_queries=1500, epsilon=0.1)


@pytest.mark.slow
def test_a_pool_costs_calibrate_and_a_candidate_few_queries():
    problem = LARGE.problem
    options = {"certificate": "population", "calibration_queries": None}
    optimizer = make_scope_joint(problem, base="nano", query_pool=60, **options)
    order = optimizer._query_order
    result = run(problem, optimizer, LARGE.evaluator, budget_usd=20.0)
    calibrated = next(row.t for row in result.trace if row.event == "calibrated")
    first = [o.query for o in result.history][:calibrated]
    assert set(first) == set(order[:60])
    out, told = result.recommendation, result.summary()["population"]
    asked = [o.query for o in result.history if o.theta == out.theta]
    assert out.basis == "certified"
    assert told["answered"] == len(set(asked)) < 1500
    assert told["quality_difference"][0] >= 0
    whole = make_scope_joint(problem, base="nano", **options)
    assert result.history.spend_usd < run(problem, whole, LARGE.evaluator, 20.0).history.spend_usd


@pytest.mark.slow
def test_a_pool_in_batches():
    optimizer = make_scope_joint(
        LARGE.problem, base="nano", certificate="population", query_pool=60, batch_size=100
    )
    result = run(LARGE.problem, optimizer, LARGE.evaluator, budget_usd=20.0)
    asked = [o.query for o in result.history if o.theta == result.recommendation.theta]
    assert result.recommendation.basis == "certified"
    assert len(set(asked)) < 1500


@pytest.mark.parametrize("make", [make_scope, make_scope_joint])
def test_what_a_pool_needs(make):
    for size in (0, 201):
        with pytest.raises(InputError, match=f"query_pool={size} must be 1 to 200"):
            make(PROBLEM, base="nano", certificate="population", query_pool=size)
    for certificate in ("bounds", "sequence"):
        with pytest.raises(InputError, match="query_pool=60 needs certificate=population"):
            make(PROBLEM, base="nano", certificate=certificate, query_pool=60)


@pytest.mark.parametrize("make", [make_scope, make_scope_joint])
def test_another_constraint_is_refused_with_a_mend(make):
    problem = replace(synthetic_task().problem, constraints=["latency_s <= 2 cap 10"])
    words = "not latency_s <= 2 cap 10; leave that out, or take certificate=sequence"
    with pytest.raises(InputError, match=words):
        make(problem, base="small", certificate="population")


def test_settings_name_the_pool_only_if_there_is_one():
    def settings(**more):
        return make_scope(PROBLEM, base="nano", certificate="population", **more).settings()

    assert "query_pool" not in settings()
    assert settings(query_pool=60) == {**settings(), "query_pool": 60}
