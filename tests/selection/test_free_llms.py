"""LLMs of one's own that cost nothing: as candidates, and as the reference."""

import math

import pytest
from selection.test_select import App, settings

import scope_torch as st
from scope_torch.errors import InputError
from scope_torch.llm.prices import LLMInfo
from scope_torch.search.stopping import FREE_CANDIDATE

SKILL = {"a": 0.3, "b": 0.95, "c": 0.97, "d": 0.99, "pro": 1.0}
AT_A_PRICE = {"objective": "quality", "max_quality_loss": None, "reference": "a"}
AT_A_PRICE |= {"constraints": ["cost_usd <= 0.01 cap 0.05"]}


class Own(App):
    """Some of its LLMs cost `usd`, all others nothing."""

    def __init__(self, usd):
        super().__init__()
        self.price = dict.fromkeys(SKILL, 0.0) | usd

    def __call__(self, models, text):
        self.calls.append((tuple(models.values()), text))
        wrong = any(hash_of(text, llm) >= SKILL[llm] for llm in models.values())
        return "?" if wrong else text.upper(), sum(self.price[llm] for llm in models.values())

    def usd(self):
        return math.fsum(self.price[llm] for llms, _ in self.calls for llm in llms)


def hash_of(text, llm):
    number = int(text.split()[1]) * 37 + sum(map(ord, llm)) * 11
    return number % 100 / 100


def chosen(app, **given):
    models = {name: list(SKILL) for name in ("plan", "solve")}
    return st.select(app, **settings(models=models, **given))


@pytest.mark.slow
@pytest.mark.parametrize(("concurrency", "most"), [(1, 80), (8, 340)])  # else 384 and 391
def test_a_free_choice_that_is_certified_ends_the_search(concurrency, most):
    """With calls in flight, other free candidates may be asked before its last answers."""
    app = Own({"pro": 0.01})
    result = chosen(app, concurrency=concurrency)
    assert result.certified
    assert result.cost_usd.value == 0
    assert result.evidence.is_known(result.recommendation.theta)
    assert result.stop_reason == FREE_CANDIDATE
    assert len(result.history) < most
    assert result.bill.total_usd == pytest.approx(app.usd(), rel=1e-12)


@pytest.mark.slow
def test_a_free_reference_is_no_obstacle_where_quality_is_looked_for():
    app = Own({"d": 0.001, "pro": 0.004})
    result = chosen(app, holdout=0.2, progress=True, **AT_A_PRICE)
    assert result.certified
    assert result.problem.reference_cost_usd == 0
    assert result.savings.value is None  # of nothing
    assert result.quality.value > result.problem.reference_quality + 0.3
    assert 0 < result.cost_usd.value <= 0.01
    assert result.held_out.num_queries == 8
    assert result.held_out.reference_usd == 0 < result.held_out.choice_usd
    assert result.bill.total_usd == pytest.approx(app.usd(), rel=1e-12)


def test_a_free_reference_is_refused_before_anything_is_asked_where_less_cost_is_looked_for():
    app = Own({"pro": 0.01})
    prices = {name: LLMInfo(name, 0.0, 0.0) for name in SKILL}
    prices["pro"] = LLMInfo("pro", 1.0, 2.0)
    with pytest.raises(InputError, match="its LLMs cost nothing, and nothing is cheaper"):
        chosen(app, prices=prices, reference="d")
    assert not app.calls
    with pytest.raises(InputError, match="free reference: take one that costs something"):
        chosen(app, reference="d")  # who says USD says them in an answer
    own = prices | {"d": LLMInfo("d", 0.0, 0.0, gpu_hour_usd=2.0)}  # which is not free
    assert chosen(app, prices=own, reference="d", dry_run=True).num_configurations == 25
