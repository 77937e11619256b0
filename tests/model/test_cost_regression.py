"""The scale of costs by regression of logarithms, against its model written out."""

import itertools
import math

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from scope_torch import LLM
from scope_torch.factors import product
from scope_torch.model import cost_regression
from scope_torch.model.cost_regression import regress_costs
from scope_torch.model.cost_scale import fit_cost_scale
from scope_torch.space import ConfigSpace

SPACE = ConfigSpace((3, 4))
LLMS = (("a", "b", "c"), ("a", "b", "c", "d"))
TERMS = (np.array([1e-5, 2e-4, 3e-2]), np.array([5e-5, 1e-4, 1e-3, 1e-2]))
NEIGHBOURS = [(0, 0), (1, 0), (2, 0), (0, 1), (0, 2), (0, 3)]


def observed(thetas, queries, terms=TERMS, noise=0.0, seed=0):
    generator = np.random.default_rng(seed)
    factors = generator.lognormal(0.0, 0.5, queries)
    return [
        (theta, q, float(sum(t[m] for t, m in zip(terms, theta, strict=True)) * f))
        for theta in thetas
        for q, f in enumerate(factors * generator.lognormal(0.0, noise, queries))
    ]


def errors(scale, terms=TERMS):
    """Log a(theta) - log c(theta) on all of Theta, but for their mean."""
    truth = terms[0]
    for more in terms[1:]:
        truth = np.add.outer(truth, more)
    error = np.log(scale.everywhere().numpy()) - np.log(truth.flatten())
    return error - error.mean()


def test_finds_an_additive_cost_from_the_neighbours_of_one_configuration():
    """Also where it was not observed, and whatever the queries cost."""
    scale = regress_costs(SPACE, observed(NEIGHBOURS, 20))
    assert np.abs(errors(scale)).max() < 0.1


@pytest.mark.slow
def test_an_llm_costs_in_a_module_what_it_costs_in_another():
    """What is seen in the dear module is known in the cheap one, where the base's cost hides it."""
    space, prices = ConfigSpace((4, 4)), np.array([1e-5, 1e-4, 1e-3, 1e-2])
    terms, names = (prices, prices / 20), (("a", "b", "c", "d"),) * 2
    neighbours = [(3, 3), *((m, 3) for m in range(3)), *((3, m) for m in range(3))]
    found = []
    for seed in range(5):
        costs = observed(neighbours, 4, terms, noise=0.3, seed=seed)
        fits = regress_costs(space, costs, llms=names), regress_costs(space, costs)
        found.append([errors(one, terms).std() for one in (*fits, fit_cost_scale(space, costs))])
    related, apart, squares = np.mean(found, axis=0)
    assert related < 0.7 * min(apart, squares)


def test_one_long_answer_does_not_make_an_llm_dear():
    costs = observed(NEIGHBOURS, 4)
    theta, query, usd = costs[4]
    assert theta == (1, 0)
    longer = [*costs[:4], (theta, query, 100 * usd), *costs[5:]]
    grown = [
        fit(SPACE, longer).at((1, 1)) / fit(SPACE, costs).at((1, 1))
        for fit in (regress_costs, fit_cost_scale)
    ]
    assert grown[0] < 0.6 * grown[1]


def test_one_module_one_query_is_the_posterior_of_a_normal_model():
    """Then nothing is linearised: y ~ N(m, C + D), C the prior of the terms, written out."""
    usd = np.array([1e-4, 3e-4, 2e-3])
    scale = regress_costs(ConfigSpace((4,)), [((m,), 7, float(c)) for m, c in enumerate(usd)])
    prior = math.log(np.median(usd))
    C = 1.0**2 * np.ones((4, 4)) + (3.0**2 + 0.4**2) * np.eye(4)
    y, s2 = np.log(usd) - prior, 0.5**2

    def density(tau):
        of_y = multivariate_normal(np.zeros(3), C[:3, :3] + (tau**2 + s2) * np.eye(3))
        return of_y.logpdf(y) - 0.5 * (math.log(tau / 0.3) / 0.7) ** 2

    tau2 = max(np.geomspace(0.05, 2.0, 16), key=density) ** 2
    gain = C[:, :3] @ np.linalg.inv(C[:3, :3] + (tau2 + s2) * np.eye(3))
    terms = prior + gain @ y
    shift = np.mean(np.log(usd) - terms[:3]) + s2 / 2
    np.testing.assert_allclose(scale.terms[0].numpy(), np.exp(terms + shift), rtol=1e-6)
    drawn = np.random.default_rng(0).integers(4, size=512)
    variance = tau2 + np.diag(C - gain @ C[:3])[drawn].mean()
    assert scale.variance == pytest.approx(math.expm1(min(variance, 1.0)), rel=1e-6)


def test_the_variance_falls_with_what_is_known():
    """Few neighbours, more queries, all configurations; interactions leave it larger."""
    every = [*itertools.product(range(3), range(4))]
    of = [
        regress_costs(SPACE, observed(thetas, Q, noise=0.3)).variance
        for thetas, Q in ((NEIGHBOURS[:3], 2), (NEIGHBOURS, 2), (NEIGHBOURS, 20), (every, 20))
    ]
    assert sorted(of, reverse=True) == of
    assert of[0] > 5 * of[-1]
    dear = [(theta, q, c * (5.0 if sum(theta) % 2 else 1.0)) for theta, q, c in observed(every, 20)]
    assert regress_costs(SPACE, dear).variance > 5 * of[-1]


def test_the_order_of_the_observations_changes_nothing():
    costs = observed(NEIGHBOURS, 5, noise=0.4)
    one, other = (regress_costs(SPACE, each, llms=LLMS) for each in (costs, costs[::-1]))
    for a, b in zip(one.terms, other.terms, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-6)


def test_a_choice_without_a_factor_shares_nothing_with_a_value_none():
    costs = observed([(0, 0), (1, 1)], 5)
    of = [
        regress_costs(SPACE, costs, llms=((LLM("a"), "b", "c"), ("a", LLM("d", x=x), "e", "f")))
        for x in ("None", "some")
    ]
    np.testing.assert_allclose(of[0].terms[1], of[1].terms[1], rtol=1e-9)


@pytest.mark.slow
def test_of_very_many_choices_those_that_were_seen_are_fitted(monkeypatch):
    """The others follow them: the same scale, and no matrix of all choices is factorised."""
    many = product(llm=["a", "b", "c"], effort=[*range(10)], prompt=[*range(8)])
    space = ConfigSpace((len(many), 4))
    seen = [(0, 0), (7, 0), (23, 1), (110, 1), (151, 2), (239, 3)]
    terms = np.random.default_rng(0).lognormal(-7, 1, len(many)), TERMS[1]
    costs = observed(seen, 5, terms, noise=0.3)
    sizes = []
    interactions = cost_regression._interactions

    def noting(shares, *rest):
        sizes.append(shares.shape[1])
        return interactions(shares, *rest)

    monkeypatch.setattr(cost_regression, "_interactions", noting)
    found = regress_costs(space, costs, llms=(many, LLMS[1]))
    assert set(sizes) == {len(seen) + 4}
    monkeypatch.setattr(cost_regression, "_MANY", 10**6)
    whole = regress_costs(space, costs, llms=(many, LLMS[1]))
    for one, other in zip(found.terms, whole.terms, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)
    assert found.variance == pytest.approx(whole.variance, rel=1e-6)


def test_what_was_never_observed_is_positive_and_finite():
    for usd in (0.0, 1e-12, 1e6):
        scale = regress_costs(SPACE, [((0, 0), 0, usd), ((1, 1), 0, 0.0)], llms=LLMS)
        assert (scale.everywhere() > 0).all()
        assert scale.everywhere().isfinite().all()


@pytest.mark.parametrize(("usd", "expected"), [(0.0, 0.02), (1e-9, 1e-9)])
def test_the_scale_of_free_observations_is_given(usd, expected):
    scale = regress_costs(SPACE, [((0, 0), 0, usd), ((1, 1), 0, usd)], scale_if_free=0.02)
    np.testing.assert_allclose(scale.at((0, 0)), expected, rtol=0.5)
    assert (scale.variance == 0) == (usd == 0)
