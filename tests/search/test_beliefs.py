"""Whatever a search by the joint surrogate believes, at every step, against one dense process.

The process is solved from the observations alone. Searches have one or several candidates open,
repeats, earlier answers, several constraints, boxes and the tensor model.
"""

import itertools
import math
from collections import Counter, deque

import naive
import numpy as np
import pytest
from constrained import constrained_task
from tables import make_task

from scope_torch.bounds.base import Beta
from scope_torch.methods import make_scope_joint
from scope_torch.observation import Observation, Request
from scope_torch.search.belief import Belief
from scope_torch.search.joint_candidate import JointCandidate
from scope_torch.space_search import box, minima

SIZES, MOST = (3, 4, 2), 110
THETA = np.array(list(itertools.product(*map(range, SIZES))))
BETA = Beta(2.0, 2.0)


def average(pairs, values, rho, amplitude, lam, num_queries):
    """Mean and variance of the average of one output on all of Theta; docs/joint.md.

    values: the answers to each pair (theta, query); their mean has the noise of one over their
    number.
    """
    D, q = np.array([theta for theta, _ in pairs]), np.array([query for _, query in pairs])
    of_all = rho + (1 - rho) / num_queries
    K = naive._gram(D, D, naive.matern52) * (rho + (1 - rho) * (q[:, None] == q))
    K += np.diag([lam * (1 - rho) / len(one) for one in values])
    k = naive._gram(D, THETA, naive.matern52) * of_all
    mean = k.T @ np.linalg.solve(K, np.array([math.fsum(one) / len(one) for one in values]))
    variance = of_all - (k * np.linalg.solve(K, k)).sum(0)
    return mean, amplitude**2 * np.maximum(variance, 0)


def bounds_of(history, surrogate, hyperparameters, scale, beta):
    """L_c, U_c and L_g on all of Theta; with several constraints L_g of the worst."""
    terms = sum(term.numpy()[THETA[:, i]] for i, term in enumerate(scale.terms))
    a = np.maximum(terms, scale.least)
    of_theta = dict(zip(map(tuple, THETA.tolist()), a, strict=True))
    answers: dict = {}
    for theta, query, usd, *g in history:
        answers.setdefault((theta, query), []).append((usd / of_theta[theta] - 1, *g))
    columns = [
        [[row[zeta] for row in rows] for rows in answers.values()]
        for zeta in range(len(hyperparameters))
    ]
    how = surrogate.lam, surrogate.num_queries
    outputs = zip(columns, hyperparameters, strict=True)
    of_c, *of_g = (average([*answers], y, *fitted, *how) for y, fitted in outputs)
    mean, s = np.maximum(1 + of_c[0], 0.05), np.sqrt(of_c[1])
    log = np.sqrt(np.log1p((s / mean) ** 2))
    lower, upper = (a * mean * np.exp(b * log - log**2 / 2) for b in (-beta.c, beta.c))
    unit = hyperparameters[1].amplitude
    lower_g = [
        (g - beta.g * np.sqrt(v)) * unit / fitted.amplitude
        for (g, v), fitted in zip(of_g, hyperparameters[1:], strict=True)
    ]
    return lower, upper, np.max(lower_g, axis=0)


def watched(monkeypatch):
    """Compares in every search from now on; returns how often."""
    history, counts, of_candidate = [], Counter(), {}
    learn, lower_bounds = Belief.learn, Belief.lower_bounds
    init, update = JointCandidate.__init__, JointCandidate.update

    def close(got, expected):
        np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-7)

    def check(candidate):
        (theta, *of), own = of_candidate[candidate]
        at = THETA.tolist().index(list(theta))
        known, surrogate, fitted, scale = of
        expected = bounds_of([*known, *own], surrogate, fitted, scale, BETA)
        got = candidate.lower_c(BETA), candidate.upper_c(BETA), candidate.lower_g(BETA)
        close(got, [values[at] for values in expected])
        counts["after an answer" if own else "at first"] += 1
        counts["while others answered"] += len(history) > len(known) + len(own)

    def new_init(self, surrogate, theta, *of):
        init(self, surrogate, theta, *of)
        now = list(history), surrogate, surrogate.hyperparameters, surrogate.scale
        of_candidate[self] = (theta, *now), []
        check(self)

    def new_update(self, query, y_c, *g):
        update(self, query, y_c, *g)
        (theta, *_), own = of_candidate[self]
        own.append((theta, query, y_c, *g))
        check(self)

    def new_learn(self, observation):
        usd, g = self.values(observation)
        history.append((observation.theta, observation.query, usd, *g))
        learn(self, observation)

    def new_lower_bounds(self, u_out, theta_out):
        found, surrogate = lower_bounds(self, u_out, theta_out), self.surrogate
        of = surrogate, surrogate.hyperparameters, surrogate.scale, self.beta()
        c, _, g = bounds_of(history, *of)
        may = np.ones(len(THETA), dtype=bool)
        may[[theta_out, *map(THETA.tolist().index, new_lower_bounds.open)]] = False
        least = c[may & (g <= 0)].min(initial=math.inf)
        if least <= u_out:  # else a device says +inf
            close(found.least_c, least)
        counts["minima"] += 1
        return found

    new_lower_bounds.open = []
    for owner, name, new in (
        (Belief, "learn", new_learn),
        (Belief, "lower_bounds", new_lower_bounds),
        (JointCandidate, "__init__", new_init),
        (JointCandidate, "update", new_update),
    ):
        monkeypatch.setattr(owner, name, new)
    return counts, new_lower_bounds


def boxes(monkeypatch):
    """Boxes in any Theta, few variances exact, and Theta looked at in small parts."""
    for module, name, value in (
        (box, "_LEAST_SIZE", 1),
        (box, "_SMALLER", 1.2),
        (box, "_WAIT", 0),
        (minima, "CHUNK", 5),
        (minima, "AT_ONCE", 1),
    ):
        monkeypatch.setattr(module, name, value)


def task_of(kind):
    if kind == "constraints":
        return constrained_task(2, SIZES)
    task = make_task(3, SIZES, 10)
    return task.problem, task.evaluator()


CASES = {
    "one": {},
    "in flight": {"in_flight": 8},
    "tensor": {"in_flight": 8, "surrogate": "tensor"},
    "repeats": {"certificate_flips": 0.1},
    "constraints": {"in_flight": 3},
    "boxes": {"in_flight": 3},
    "known": {"in_flight": 3},
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", CASES)
def test_beliefs_are_those_of_one_dense_process(kind, monkeypatch):
    (problem, evaluator), settings = task_of(kind), CASES[kind]
    if kind == "boxes":
        boxes(monkeypatch)
    if kind == "known":
        requests = [Request(tuple(theta), q) for theta in THETA[::5].tolist() for q in range(7)]
        settings = {**settings, "known": list(evaluator.evaluate(requests))}
    counts, looks = watched(monkeypatch)
    base = [names[0] for names in problem.llms]
    search = make_scope_joint(problem, base=base, seed=1, device="cpu", budget_usd=1e3, **settings)
    restrict = search.belief.posterior.restrict

    def restricted(allowed):
        looks.open = [theta for theta in THETA.tolist() if not allowed(tuple(theta))]
        restrict(allowed)

    monkeypatch.setattr(search.belief.posterior, "restrict", restricted)
    waiting: deque[Observation] = deque()
    in_flight = settings.get("in_flight", 1)
    while search.t < MOST:
        asked = list(evaluator.evaluate(search.ask()))
        waiting.extend(asked)
        if not waiting:
            break
        if not asked or len(waiting) >= in_flight:
            told = 1 if in_flight > 1 else len(waiting)
            search.tell([waiting.popleft() for _ in range(told)])
    looked = "while others answered" if "in_flight" in settings else "at first"
    assert min(counts["after an answer"], counts["minima"], counts[looked]) > 3, counts
