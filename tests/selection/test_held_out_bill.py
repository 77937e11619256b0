"""Held-out answers are paid for once, and are all in the bill and in the budget."""

import random
from collections import Counter

import pytest
from selection.test_select import App, exactly, settings

import scope_torch as st
from scope_torch.runs.recorded import read_run
from scope_torch.selection.sampling import split
from scope_torch.watch.reading import result_of_run

DEAR = {"a": 0.004, "b": 0.006, "c": 0.008, "pro": 0.01}  # USD of a call; skills are rising
SKILL = {"a": 0.99, "b": 0.995, "c": 0.999, "pro": 1.0}


class Four(App):
    @staticmethod
    def answer(models, text):
        luck = random.Random(f"{sorted(models.items())} {text}")
        return text.upper() if all(luck.random() < SKILL[llm] for llm in models.values()) else "?"

    @staticmethod
    def cost(models):
        return sum(DEAR[llm] for llm in models.values())

    def usd(self):
        return sum(DEAR[llm] for names, _ in self.calls for llm in names)


@pytest.mark.slow
def test_an_earlier_choice_stays_in_bill_and_budget(tmp_path):
    app, choices = Four(), []
    data = [(f"question {i}", f"QUESTION {i}") for i in range(60)]
    given = {"models": {name: list(DEAR) for name in ("plan", "solve")}, "max_quality_loss": 0.2}
    given |= {"dataset": data, "run_dir": tmp_path, "holdout": 0.4, "seed": 1, "repeats": None}
    for budget_usd in (2.4, 2.6, 3.0, 3.4):
        result = st.select(app, **settings(metric=exactly, budget_usd=budget_usd, **given))
        choices.append(tuple(result.choice.values()))
        assert result.bill.total_usd == pytest.approx(app.usd(), rel=1e-12)
        assert app.usd() <= budget_usd + 0.02
        seen = result_of_run(read_run(tmp_path))  # as the page shows it
        assert seen.bill.total_usd == pytest.approx(app.usd(), rel=1e-12)
        assert seen.held_out.num_queries == result.held_out.num_queries
    assert len(set(choices)) == 3
    held_out = {text for text, _ in data} - set(result.queries)
    assert max(Counter(call for call in app.calls if call[1] in held_out).values()) == 1
    again = st.select(app, **settings(metric=exactly, budget_usd=budget_usd, **given))
    assert again.bill.amounts == result.bill.amounts


@pytest.mark.slow
@pytest.mark.parametrize("loss_usd", [0.45, 0.6])
def test_answers_to_more_queries_than_are_paid_for_now(tmp_path, loss_usd):
    """What a call lost is not left for the held-out queries, of which some were answered."""
    given = {"run_dir": tmp_path, "holdout": 0.5, "budget_usd": 1.3, "repeats": None}
    given = settings(metric=exactly, **given)
    _, held_out = split(given["dataset"], 0.5, seed=0)
    app, lost = App(), []

    def breaks(models, text):
        if text == held_out[15][0] and not lost:
            lost.append(loss_usd)
            error = RuntimeError("down")
            error.cost_usd = loss_usd
            raise error
        return app(models, text)

    with pytest.raises(RuntimeError):
        st.select(breaks, **given)
    result = st.select(breaks, **given)
    held_out = {text for text, _ in held_out}
    assert max(Counter(call for call in app.calls if call[1] in held_out).values()) == 1
    assert result.bill.total_usd == pytest.approx(app.usd() + loss_usd, rel=1e-12)
    assert result.bill.total_usd <= 1.3 + loss_usd
