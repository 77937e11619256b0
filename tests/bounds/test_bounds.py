"""Half-widths of the confidence bounds: eq:beta-def, and the rules that tune."""

import json
import math

import naive
import numpy as np
import pytest
import torch
from composed import compose_scope
from test_per_query import all_codes, random_history, surrogate_of

from scope_torch import make_scope, run
from scope_torch.bounds import TheoryBounds, TunedBounds
from scope_torch.bounds.base import Beta
from scope_torch.bounds.information_gain import InformationGain, RealisedGain
from scope_torch.bounds.tuned import MIN_LOO_QUERIES
from scope_torch.errors import InputError
from scope_torch.model.hamming_sums import HammingGrid
from scope_torch.model.kernels import HammingMatern52Kernel, HammingRBFKernel
from scope_torch.model.per_query import QuerySurrogate
from scope_torch.problem import SelectionProblem
from scope_torch.tasks.synthetic import synthetic_task

SIZES, KERNEL, LAM = (3, 4, 2), HammingMatern52Kernel(), 1e-4
COST = 0.004  # c(theta_0) in USD


def problem(num_queries=8, reference_cost_usd=COST) -> SelectionProblem:
    llms = tuple(tuple(f"llm{k}" for k in range(size)) for size in SIZES)
    modules = tuple(f"module{i}" for i in range(len(SIZES)))
    return SelectionProblem(
        "t", modules, llms, num_queries, (2, 3, 1), 0.8, reference_cost_usd, 0.05
    )


def theory(num_queries=8, lam=1e-2, **options) -> tuple[TheoryBounds, InformationGain]:
    gain = InformationGain(problem().space, KERNEL, lam)
    return TheoryBounds(problem(num_queries), gain, **options), gain


def posterior(surrogate) -> tuple[torch.Tensor, torch.Tensor]:
    """mu_bar_g and sigma_bar on all of Theta."""
    grid, aggregate = HammingGrid(surrogate.space, surrogate.kernel), surrogate.aggregate()
    form = grid.quadratic_form(aggregate.codes, aggregate.matrix)
    mean_g = grid.weighted_sum(aggregate.codes, aggregate.weights[1])
    return mean_g, (aggregate.constant - form).sqrt()


def fitted(history, num_queries=8, **options) -> TunedBounds:
    surrogate = surrogate_of(history, SIZES, num_queries, LAM, KERNEL)
    bounds = TunedBounds(problem(num_queries), **options)
    mean_g, sigma = posterior(surrogate)
    bounds.fit(surrogate, lambda: float(((mean_g + 1) / sigma).min()))
    return bounds


def half_widths(bounds, num_queries=8) -> tuple[float, float]:
    c, g, *_ = bounds.beta(5)
    return c / math.sqrt(num_queries), g / math.sqrt(num_queries)


@pytest.fixture
def history():
    """Two thirds of Theta, some of it on all 8 queries, with costs of order 1e-3."""
    rows = random_history(SIZES, 8, 200, 0)
    return [(theta, q, 1e-3 * (3 + y_c), y_g) for theta, q, y_c, y_g in rows]


@pytest.mark.parametrize("num_queries", [1, 8, 500])
@pytest.mark.parametrize("j_max", [0, 1, 2, 17, 60])
@pytest.mark.parametrize(("lam", "R_c", "R_g"), [(1e-6, 1e-3, 1e-3), (0.25, 0.5, 0.0), (1, 2, 1)])
def test_theory_is_beta_def(num_queries, j_max, lam, R_c, R_g):
    unit = 0.0025
    bounds, gain = theory(
        num_queries, lam, R_c=R_c, R_g=R_g, B_c=3.0, B_g=0.7, delta=0.05, cost_unit=unit
    )
    root = math.sqrt(2 * (gain.gamma(j_max) + math.log(2 * num_queries / 0.05)))
    c, g, *_ = bounds.beta(j_max)
    assert g == pytest.approx(math.sqrt(num_queries) * (0.7 + R_g / math.sqrt(lam) * root))
    assert c == pytest.approx(unit * math.sqrt(num_queries) * (3 + R_c / math.sqrt(lam) * root))


def test_theory_in_the_units_of_the_reference():
    """Costs in units of c(theta_0): in these units the problem is the same, whatever it costs."""
    gain = InformationGain(problem().space, KERNEL, 1e-2)
    cheap, dear = (TheoryBounds(problem(8, cost), gain) for cost in (COST, 1000 * COST))
    assert cheap.settings()["cost_unit"] == COST
    assert dear.beta(7).c == pytest.approx(1000 * cheap.beta(7).c)
    assert dear.beta(7).g == cheap.beta(7).g


def test_theory_noise_term_of_the_papers_constants():
    """R = 1e-3, lam = 1e-6, Q = 500, delta = 1e-4: about 7 at J = 1; design.md, section 5."""
    bounds, _ = theory(500, 1e-6, B_g=1e-12)
    assert half_widths_at(bounds, 1, 500) == pytest.approx(7, abs=0.5)
    assert half_widths_at(bounds, 0, 500) == pytest.approx(math.sqrt(2 * math.log(1e7)))


def half_widths_at(bounds, j_max, num_queries) -> float:
    return bounds.beta(j_max).g / math.sqrt(num_queries)


@pytest.mark.parametrize(
    "options",
    [
        *({name: value} for name in ("B_c", "B_g", "cost_unit") for value in (0.0, -1.0)),
        *({name: -1e-9} for name in ("R_c", "R_g")),
        *({"delta": value} for value in (0.0, 1.0, -0.1, 1.5, math.nan)),
        *(
            {name: value}
            for name in ("B_c", "B_g", "R_c", "R_g", "cost_unit")
            for value in (math.nan, math.inf)
        ),
    ],
    ids=str,
)
def test_theory_refuses(options):
    with pytest.raises(InputError, match=next(iter(options))):
        theory(**options)


def test_theory_report_states_what_it_stands_on():
    bounds, _ = theory(delta=0.05, B_g=2.5, R_c=0.125)
    bounds.fit(QuerySurrogate(problem().space, KERNEL, 8, 1e-2), lambda: 1.0)
    beta = bounds.beta(3)
    report = json.loads(json.dumps(bounds.report()))
    assert report["mode"] == bounds.settings()["mode"] == "theory"
    assert report["delta"] == 0.05
    assert [report["b_c"], report["b_g"]] == pytest.approx([b / math.sqrt(8) for b in beta[:2]])
    text = " ".join(report["assumptions"])
    assert all(value in text for value in ("B_g=2.5", "R_c=0.125", "0.05", f"{COST:g} USD"))
    assert json.loads(json.dumps(bounds.settings()))["B_g"] == 2.5


@pytest.mark.parametrize("R_g", [1e-4, 0.3])
def test_theory_tunes_the_norm_so_that_something_is_eligible(history, R_g):
    """sec:exp: B_g is the least >= 0 for which some theta has L_g <= -1 at i = 1."""
    bounds, gain = theory(8, LAM, R_g=R_g, B_g="eligible")
    assert bounds.beta(0).g == pytest.approx(_noise(gain, 0, R_g) * math.sqrt(8))
    surrogate = surrogate_of(history, SIZES, 8, LAM, KERNEL)
    mean_g, sigma = posterior(surrogate)
    bounds.fit(surrogate, lambda: float(((mean_g + 1) / sigma).min()))
    beta_g = bounds.beta(9).g
    slope, noise = float(((mean_g + 1) / sigma).min()), math.sqrt(8) * _noise(gain, 9, R_g)
    assert beta_g == pytest.approx(max(slope, noise), rel=1e-8)
    assert bounds.B_g == pytest.approx(max(0.0, slope - noise) / math.sqrt(8))
    assert (bounds.B_g > 0) == (R_g < 0.1)  # the noise term alone is wide enough, or it is not
    assert (mean_g - beta_g * sigma).min() <= -1
    grown = math.sqrt(8) * (bounds.B_g + _noise(gain, 30, R_g))
    assert bounds.beta(30).g == pytest.approx(grown)
    report = bounds.report()
    assert report["B_g"] == bounds.B_g
    assert "tuned after Calibrate" in " ".join(report["assumptions"])
    assert bounds.settings()["B_g"] == "eligible"


def _noise(gain: InformationGain, j_max: int, R_g: float) -> float:
    """R / sqrt(lam) sqrt(2 (gamma(J) + log(2 Q / delta))) at Q = 8, delta = 1e-4."""
    return R_g / math.sqrt(LAM) * math.sqrt(2 * (gain.gamma(j_max) + math.log(2 * 8 / 1e-4)))


@pytest.mark.parametrize("seed", range(5))
def test_theory_tunes_the_norm_with_realised_gain(seed):
    """sqrt(sum_q (B + noise_q)^2) = beta, by bisection."""
    rng = np.random.default_rng(seed)
    information, slope = rng.uniform(0.1, 3, 8).tolist(), 30 + 5 * seed
    bounds = TheoryBounds(problem(8), RealisedGain(KERNEL, LAM), R_g=0.01, B_g="eligible")
    bounds.fit(None, lambda: slope)
    noise = [
        0.01 / math.sqrt(LAM) * math.sqrt(2 * (i + math.log(2 * 8 / 1e-4))) for i in information
    ]
    low, high = 0.0, 1000.0
    for _ in range(200):
        middle = (low + high) / 2
        too_wide = math.sqrt(sum((middle + n) ** 2 for n in noise)) > slope
        low, high = (low, middle) if too_wide else (middle, high)
    assert bounds.beta(1, information).g == pytest.approx(slope)
    assert bounds.B_g == pytest.approx(low, abs=1e-6)


def test_tuned_numbers_are_taken_as_they_are(history):
    bounds = fitted(history, b_g=0.3, b_c=0.002)
    assert half_widths(bounds) == pytest.approx((0.002, 0.3))
    assert bounds.beta(0) == bounds.beta(1000)
    from_text = fitted(history, b_g="0.3", b_c="2e-3")  # as the command line gives them
    assert half_widths(from_text) == pytest.approx((0.002, 0.3))
    assert bounds.report()["b_rules"] == {"b_c": "given", "b_g": "given"}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("count", [0, 10, 200])
def test_eligible_is_the_least_with_an_eligible_configuration(seed, count):
    rows = random_history(SIZES, 8, count, seed)
    b_g = half_widths(fitted(rows, b_c=1.0, b_g="eligible"))[1]
    _, mean_g, variance = naive.aggregate(rows, all_codes(SIZES), 8, LAM, naive.matern52)
    beta_g = math.sqrt(8) * b_g
    assert (mean_g - beta_g * np.sqrt(variance)).min() <= -1
    assert (mean_g - beta_g * (1 - 1e-6) * np.sqrt(variance)).min() > -1
    assert b_g == pytest.approx(1.0) if count == 0 else b_g > 0


def test_eligible_is_exact_in_the_librarys_own_arithmetic(history):
    surrogate = surrogate_of(history, SIZES, 8, LAM, KERNEL)
    mean_g, sigma = posterior(surrogate)
    bounds = fitted(history, b_g="eligible")
    assert float((mean_g - bounds.beta(9).g * sigma).min()) <= -1


def test_loo_is_refitting(history):
    b_c, b_g = half_widths(fitted(history, b_c="loo", b_g="loo"))
    assert b_c == pytest.approx(naive.loo_scale(history, "c", LAM, naive.matern52), rel=1e-6)
    assert b_g == pytest.approx(naive.loo_scale(history, "g", LAM, naive.matern52), rel=1e-6)


@pytest.mark.parametrize("fraction", [1 / 30, 0.5])
def test_reference_fraction(history, fraction):
    bounds = fitted(history, b_c="reference_fraction", reference_fraction=fraction)
    assert half_widths(bounds)[0] == pytest.approx(fraction * COST)


def test_defaults_are_loo_widening_and_a_thirtieth_of_the_reference(history):
    explicit = fitted(
        history, b_g="loo_widening", b_c="reference_fraction", reference_fraction=1 / 30
    )
    assert fitted(history).beta(1) == explicit.beta(1)
    assert fitted(history).settings() == explicit.settings()
    assert half_widths(explicit)[0] == pytest.approx(COST / 30)
    assert half_widths(explicit)[1] == half_widths(fitted(history, b_g="loo"))[1]
    report = json.loads(json.dumps(explicit.report()))
    assert report["b_rules"] == {"b_c": "reference_fraction", "b_g": "loo_widening"}
    assert report["b_g_widened"] == []
    assert report["delta"] is None
    assert (report["b_c"], report["b_g"]) == pytest.approx(half_widths(explicit))


@pytest.mark.parametrize("num_queries", [1, 5, 8])
def test_nothing_to_leave_out(num_queries):
    """Fewer than 6 queries on every configuration: the other rule, and the report says so."""
    rows = [(tuple(t), q, 1e-3, 0.1) for t in all_codes(SIZES)[:5].tolist() for q in range(5)]
    rows = [row for row in rows if row[1] < num_queries]
    assert MIN_LOO_QUERIES == 6
    for history in ([], rows):
        bounds = fitted(history, num_queries, b_g="loo", b_c="loo")
        other = fitted(history, num_queries, b_g="eligible", b_c="reference_fraction")
        assert bounds.beta(1) == other.beta(1)
        rules = bounds.report()["b_rules"]
        assert "reference_fraction (loo found no" in rules["b_c"]
        assert "eligible (loo found no" in rules["b_g"]


def test_six_queries_are_enough():
    rows = [(tuple(t), q, 1e-3, 0.1) for t in all_codes(SIZES)[:5].tolist() for q in range(6)]
    rules = fitted(rows, b_g="loo", b_c="loo").report()["b_rules"]
    assert rules == {"b_c": "loo", "b_g": "loo"}


def test_tuned_before_fit():
    bounds = TunedBounds(problem())
    with pytest.raises(RuntimeError, match="before fit"):
        bounds.beta(1)
    assert bounds.report()["b_g"] is None
    assert json.loads(json.dumps(bounds.settings()))["b_g"] == "loo_widening"


@pytest.mark.parametrize(
    "options",
    [
        *({name: value} for name in ("b_g", "b_c") for value in (0.0, -0.1, math.nan, math.inf)),
        {"b_g": "reference_fraction"},
        {"b_c": "eligible"},
        {"b_c": "nonsense"},
        {"b_c": "-1"},
        {"reference_fraction": 0.0},
        {"reference_fraction": "loo"},
    ],
    ids=str,
)
def test_tuned_refuses(options):
    with pytest.raises(InputError, match=next(iter(options))):
        TunedBounds(problem(), **options)


@pytest.mark.parametrize("value", [None, [1.0], True, float("nan"), "often"])
def test_half_widths_of_other_types_are_refused(value):
    with pytest.raises(InputError, match="b_g"):
        TunedBounds(problem(), b_g=value)


@pytest.mark.parametrize(
    ("kernel", "lam"), [(HammingMatern52Kernel(), 1e-4), (HammingRBFKernel(), 1e-6)]
)
def test_scope_refuses_bounds_made_for_another_surrogate(kernel, lam):
    bounds = TheoryBounds(problem(), InformationGain(problem().space, kernel, lam))
    arguments = {"kernel": HammingMatern52Kernel(), "lam": 1e-6, "seed": 0, "base": (0, 0, 0)}
    with pytest.raises(InputError, match="not what the bounds were made for"):
        compose_scope(problem(), bounds, **arguments)


class Constant:
    """Bounds of one's own: the half-widths are what they are."""

    gain = None

    def __init__(self, mode):
        self.mode = mode

    def fit(self, surrogate, least_slope):
        pass

    def beta(self, j_max, information=()):
        return Beta(1e-3, 0.5)

    def widen(self):
        return False

    def settings(self):
        return {"mode": self.mode}

    def report(self):
        return {"mode": self.mode}


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["constant", "tuned"])
@pytest.mark.parametrize("certificate", ["bounds", "sequence"])
def test_bounds_of_ones_own_end_in_a_result(mode, certificate, tmp_path):
    """`make_scope` takes them: what they rest on is nothing that we know."""
    task = synthetic_task(num_queries=8)
    search = make_scope(task.problem, base="nano", bounds=Constant(mode), certificate=certificate)
    result = run(task.problem, search, task.evaluator, 0.1, run_dir=tmp_path / "run")
    own = "the bounds, constant, are your own: no probability is proven of them here"
    assert (own in result.report["assumptions"]) == (mode == "constant")
    by_bounds = ("accepted (tuned)", "reference")
    assert certificate == "sequence" or result.recommendation.basis in by_bounds
    result.save(tmp_path / "report.html")
