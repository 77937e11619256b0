"""The information in what was observed, and eq:beta-def with it in place of its maximum."""

import math

import numpy as np
import pytest
from test_bounds import COST, problem
from test_joint import LAM, RHOS, matern, random_history, surrogate_of
from test_joint import SPACE as SMALL
from test_joint import Q as NUM_QUERIES

from scope_torch.bounds import TheoryBounds
from scope_torch.bounds.information_gain import InformationGain, RealisedGain
from scope_torch.errors import InputError
from scope_torch.methods import make_scope, make_scope_joint
from scope_torch.model.kernels import HammingMatern52Kernel
from scope_torch.model.per_query import QuerySurrogate
from scope_torch.observation import Observation
from scope_torch.search.candidate import QueryCandidate
from scope_torch.search.joint_candidate import JointCandidate

KERNEL = HammingMatern52Kernel()
THETA = (1, 2, 0)


def naive_information(history, rho=None, query=None):
    """1/2 log det(I + K / noise) of all rows, repeats repeated; of one query, or of the pairs."""
    rows = [row for row in history if query is None or row[1] == query]
    if not rows:
        return 0.0
    theta, q = np.array([row[0] for row in rows]), np.array([row[1] for row in rows])
    k, noise = matern(theta, theta), LAM
    if rho is not None:
        k, noise = k * (rho + (1 - rho) * (q[:, None] == q[None, :])), LAM * (1 - rho)
    return 0.5 * np.linalg.slogdet(np.eye(len(rows)) + k / noise)[1]


def paper_surrogate(history):
    surrogate = QuerySurrogate(SMALL, KERNEL, NUM_QUERIES, LAM)
    for row in history:
        surrogate.observe(*row)
    return surrogate


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("one_by_one", [False, True])
def test_of_every_query(seed, one_by_one):
    history = random_history(seed)
    surrogate = paper_surrogate([])
    for row in history:
        surrogate.observe(*row)
        if one_by_one:  # bordered rather than factorised anew
            surrogate.observed()
    expected = [naive_information(history, query=q) for q in range(NUM_QUERIES)]
    assert surrogate.information() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("rho", RHOS)
def test_of_all_pairs(rho):
    history = random_history(1)
    (information,) = surrogate_of(history, rho).information()
    assert information == pytest.approx(naive_information(history, rho), rel=1e-9)
    if rho == 0:
        separate = sum(naive_information(history, query=q) for q in range(NUM_QUERIES))
        assert information == pytest.approx(separate, rel=1e-9)


@pytest.mark.parametrize("batch", [1, 3])
def test_the_candidate_keeps_it_up_to_date(batch):
    rng = np.random.default_rng(2)
    for rho in (None, *RHOS):
        history = random_history(2)
        if rho is None:
            candidate = QueryCandidate(paper_surrogate(history), THETA, range(NUM_QUERIES))
        else:
            candidate = JointCandidate(surrogate_of(history, rho), THETA, range(NUM_QUERIES))
        while queries := candidate.next_queries(batch):
            for q in queries:
                observation = Observation(THETA, q, float(rng.random()), float(rng.random()))
                candidate.update(observation.query, observation.cost_usd, 0.5 - observation.quality)
                history.append((THETA, q, 0.0, 0.0))
        if rho is None:
            expected = [naive_information(history, query=q) for q in range(NUM_QUERIES)]
        else:
            expected = [naive_information(history, rho)]
        assert candidate.information == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("query", [3, 0])
def test_queries_in_a_given_order(query):
    order = [query, *(q for q in range(NUM_QUERIES) if q != query)]
    history = random_history(3)
    for candidate in (
        QueryCandidate(paper_surrogate(history), THETA, order, in_order=True),
        JointCandidate(surrogate_of(history, 0.3), THETA, order, in_order=True),
    ):
        assert candidate.next_queries(2) + candidate.next_queries(9) == order


def test_beta_is_the_root_of_the_sum_of_squares():
    """sum_q b_q sigma_q / Q <= sqrt(sum_q b_q^2) sqrt(sum_q sigma_q^2) / Q."""
    lam, R, B, delta = 1e-2, 0.3, 0.7, 0.05
    bounds = TheoryBounds(
        problem(3), RealisedGain(KERNEL, lam), R_c=2 * R, R_g=R, B_c=3 * B, B_g=B, delta=delta
    )
    information = [0.0, 1.7, 30.0]
    noise = [R / math.sqrt(lam) * math.sqrt(2 * (i + math.log(2 * 3 / delta))) for i in information]
    c, g, *_ = bounds.beta(9, information)
    assert g == pytest.approx(math.sqrt(sum((B + x) ** 2 for x in noise)))
    assert c == pytest.approx(COST * math.sqrt(sum((3 * B + 2 * x) ** 2 for x in noise)))
    assert bounds.settings()["gain"] == bounds.gain.name == "realised"


@pytest.mark.parametrize("rho", [0.0, 0.5])
def test_beta_of_the_joint_process_has_no_union_over_queries(rho):
    lam, R, B, delta = 1e-2, 0.3, 0.7, 0.05
    gain = RealisedGain(KERNEL, lam)
    bounds = TheoryBounds(problem(8), gain, R_g=R, B_g=B, delta=delta, rho=rho)
    root = math.sqrt(2 * (12.5 + math.log(2 / delta)))
    expected = B + R / math.sqrt(lam * (1 - rho)) * root
    assert bounds.beta(4, [12.5]).g == pytest.approx(expected)
    prior = rho + (1 - rho) / 8  # variance of the average of 8 queries
    assert bounds.report()["b_g"] == pytest.approx(expected * math.sqrt(prior))
    assert f"rho={rho:g}" in " ".join(bounds.report()["assumptions"])


@pytest.mark.parametrize("seed", range(3))
def test_never_wider_than_with_the_maximum(seed):
    space = problem().space
    maximum = TheoryBounds(problem(8), InformationGain(space, KERNEL, LAM))
    realised = TheoryBounds(problem(8), RealisedGain(KERNEL, LAM))
    surrogate = QuerySurrogate(space, KERNEL, 8, LAM)
    rng, counts = np.random.default_rng(seed), [0] * 8
    ratios = []
    for _ in range(60):
        q = int(rng.integers(8))
        counts[q] += 1
        surrogate.observe(tuple(int(rng.integers(n)) for n in space.sizes), q, 0.0, 0.0)
        information = surrogate.information()
        betas = [bounds.beta(max(counts), information).g for bounds in (realised, maximum)]
        ratios.append(betas[0] / betas[1])
    assert max(ratios) <= 1
    assert min(ratios[10:]) < 0.97


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"bounds": {"mode": "theory"}}, "rho=None, .* give rho in"),
        ({"bounds": {"mode": "theory"}, "rho": 0.5, "amplitude": 2.0}, "amplitude=2.0"),
        ({"bounds": {"mode": "theory"}, "rho": 0.5, "relative_cost": True}, "relative_cost=True"),
        ({"bounds": {"mode": "theory"}, "rho": 1.0}, "rho=1.0, .* give rho in"),
        ({"bounds": {"mode": "tuned"}}, "bounds mode 'tuned' must be credible or theory"),
        ({"bounds": {"b_g": 1.0}}, "unknown bounds setting 'b_g'"),
        ({"certificate": "word"}, "certificate 'word' must be bounds or sequence"),
        ({"certificate": "sequence", "bounds": {"delta": 0.0}}, "delta=0.0 must lie in"),
        (
            {"certificate": "sequence", "certificate_flips": 0.6},
            "certificate_flips=0.6 must lie in",
        ),
    ],
    ids=str,
)
def test_the_joint_method_refuses(settings, words):
    with pytest.raises(InputError, match=words):
        make_scope_joint(problem(), base="llm0", device="cpu", **settings)


def test_gain_is_a_setting_of_theory():
    with pytest.raises(InputError, match="bounds gain 'most' must be maximum or realised"):
        make_scope(problem(), base="llm0", bounds={"gain": "most"})
    bounds = {"mode": "theory", "gain": "realised"}
    optimizer = make_scope(problem(), base="llm0", bounds=bounds, device="cpu")
    assert optimizer.settings()["bounds"]["gain"] == "realised"
    with pytest.raises(InputError, match="gain=maximum"):
        TheoryBounds(problem(), InformationGain(problem().space, KERNEL, 0.1), rho=0.5)
