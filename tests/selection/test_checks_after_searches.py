"""What a check takes over from a search: nothing that must not count, and no grade in vain."""

import pytest
from selection.test_select import App, exactly, settings

import scope_torch as st
from scope_torch.llm.prices import LLMInfo

DATA = [(f"query {i}", f"QUERY {i}") for i in range(60)]
HOW = {"dataset": DATA, "metric": exactly, "name": "x", "on_error": "zero", "budget_usd": 5}
MINI, PRO = {"answer": "mini"}, {"answer": "pro"}
BOTH = [{"plan": llm, "solve": llm} for llm in ("mini", "pro")]


class Cached:
    """Says how many of its tokens were cached; may fail once, and may be stopped."""

    def __init__(self, fails=(), stop=None):
        self.calls, self.fails, self.stop = [], fails, stop

    def __call__(self, models, text):
        if len(self.calls) == self.stop:
            raise KeyboardInterrupt
        self.calls.append((models["answer"], text))
        if (models["answer"], text) in self.fails:
            raise TimeoutError("slow")
        usage = {"prompt_tokens": 1_000, "completion_tokens": 100}
        return text.upper(), {"answer": {**usage, "prompt_tokens_details": {"cached_tokens": 500}}}


def prices(share=0.1):
    both = {"mini": (0.5, share), "pro": (10.0, 0.1)}
    return {
        llm: LLMInfo(llm, usd, 4 * usd, cached_input_usd_per_mtok=usd * of_usd)
        for llm, (usd, of_usd) in both.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize("certificate", ["fresh", "population"])
@pytest.mark.parametrize(
    ("fails", "share"), [({("mini", "query 7")}, 0.1), ((), 0.25)], ids=["failed", "other price"]
)
def test_a_search_has_tried_it_also_if_its_answers_are_left_out(
    tmp_path, caplog, fails, share, certificate
):
    how = {**HOW, "max_quality_loss": 0.1}
    june = {"models": {"answer": ["mini", "pro"]}, "reference": "pro", "repeats": 0}
    st.select(Cached(fails), run_dir=tmp_path / "june", prices=prices(), **june, **how)
    how |= {"reference": PRO, "prices": prices(share), "certificate": certificate}
    how |= {"run_dir": tmp_path / "check", "continue_from": tmp_path / "june"}
    stopped, app = Cached(stop=7), Cached()
    with pytest.raises(KeyboardInterrupt):
        st.check(stopped, MINI, **how)
    found = st.check(app, MINI, **how)
    calls = [*stopped.calls, *app.calls]
    assert found.num_known == 0
    assert sum(llm == "pro" for llm, _ in calls) == len(found.pairs) == len(calls) / 2
    assert ("a search has tried" in caplog.text) == (certificate == "population")


def judging():
    """A metric that costs money, and its grades so far."""
    grades = []

    def judged(expected, output):
        grades.append(0.01)
        return exactly(expected, output), 0.01

    return judged, grades


@pytest.mark.slow
@pytest.mark.parametrize("certificate", ["fresh", "population", "sequence"])
def test_what_cannot_count_is_not_graded_anew(tmp_path, certificate):
    june = st.select(App(), **settings(metric=exactly, run_dir=tmp_path / "june"))
    (judged, grades), app = judging(), App()
    how = {name: settings()[name] for name in ("dataset", "name", "max_quality_loss")}
    how |= {"reference": BOTH[1], "certificate": certificate, "continue_from": tmp_path / "june"}
    found = st.check(app, BOTH[0], metric=judged, budget_usd=9, metric_version="2", **how)
    known = {one.request for one in (*june.probe, *june.reference, *june.history)}
    names = [june.problem.names(request.theta) for request in known]
    number = sum(name in BOTH for name in names) if certificate == "sequence" else 0
    assert len(grades) == len(app.calls) + number
    assert found.spent_usd == pytest.approx(app.usd() + sum(grades))


@pytest.mark.slow
def test_without_a_reference_nothing_known_is_graded_anew(tmp_path):
    st.select(App(), **settings(metric=exactly, run_dir=tmp_path / "june"))
    (judged, grades), app = judging(), App()
    how = {name: settings()[name] for name in ("dataset", "name")}
    how |= {"min_quality": 0.5, "continue_from": tmp_path / "june", "metric_version": "2"}
    for number in (5, 10):
        st.recheck(
            app, BOTH[0], metric=judged, budget_usd=9, draws=5, run_dir=tmp_path / "watch", **how
        )
        assert len(grades) == len(app.calls) == number
