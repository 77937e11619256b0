"""What an earlier search knows of what did not work, and of an LLM that does not work today."""

import random
from dataclasses import replace

import pytest

import scope_torch as st
from scope_torch.errors import InputError
from scope_torch.observation import History, Observation
from scope_torch.results.doubt import doubt_of

PRICE = {"nano": 1e-4, "mini": 4e-4, "new": 3e-4, "pro": 1e-2}  # USD of a call
SKILL = {"nano": 0.3, "mini": 0.99, "new": 0.9, "pro": 1.0}


class Pipeline:
    def __init__(self, gone=None):
        self.gone = gone

    def __call__(self, models, text):
        if models["plan"] == self.gone:
            raise RuntimeError("no answer")
        luck = random.Random(f"{models['plan']} {models['solve']} {text}")
        right = float(all(luck.random() < SKILL[llm] for llm in models.values()))
        usd = sum(PRICE[llm] for llm in models.values())
        return {"output": right, "quality": right, "cost_usd": usd}


def select(folder, app, solvers, **changes):
    return st.select(
        app,
        models={"plan": ["nano", "mini", "pro"], "solve": solvers},
        dataset=[f"query {i}" for i in range(40)],
        reference="pro",
        max_quality_loss=0.1,
        budget_usd=5.0,
        name="pipeline",
        metric_version="1",
        on_error="zero",
        run_dir=folder,
        **changes,
    )


@pytest.fixture(name="june", scope="module")
def first_search(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pipeline") / "june"
    return folder, select(folder, Pipeline(), ["nano", "mini", "pro"])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("changes", [{}, {"in_flight": 4}], ids=["one", "four"])
def test_an_llm_that_fails_today_is_dropped_or_doubted(june, tmp_path, changes, seed):
    folder, result = june
    assert result.choice == {"plan": "mini", "solve": "mini"}
    solvers, changes = ["nano", "mini", "new", "pro"], {"seed": seed, **changes}
    result = select(tmp_path, Pipeline("mini"), solvers, continue_from=folder, **changes)
    if len([one for one in result.history if one.failed]) < 5:  # too few to know
        assert "of this search with plan=mini failed" in str(result)
        return
    assert result.dropped == {"plan": ["mini"]}
    assert result.choice == {"plan": "pro", "solve": "new"}
    assert result.certified
    assert "withdrawn" in {row.event for row in result.trace}  # it had been theta_out
    front = result.pareto()
    assert all(row.llms["plan"] != "mini" for row in (*front.by_loss, *front.points))


def test_a_choice_whose_llm_failed_today_is_doubted(june):
    _, result = june
    theta = result.recommendation.theta
    said = "but all 3 calls of this search with plan=mini failed; older answers are known"
    failed = [Observation(theta, q, 0.0, 0.0, failed="app") for q in range(3)]
    for others, is_doubted in ([], True), ([Observation(theta, 5, 0.01, 1.0)], False):
        history = History()
        for observation in [*failed, *others]:
            history.append(observation)
        today = replace(result, known=list(result.history), history=history)
        assert (said in doubt_of(today)) == is_doubted


class Scored(Pipeline):
    """Has a score, which is `wrong` for mini on some queries; theta_0 fails on one."""

    def __init__(self, wrong):
        super().__init__()
        self.wrong, self.asked = wrong, []

    def __call__(self, models, text):
        self.asked.append((*models.values(), text))
        if {*models.values()} == {"pro"} and text == "query 7":
            raise RuntimeError("no answer")
        answer = super().__call__(models, text)
        is_wrong = models["plan"] == "mini" and int(text.split()[1]) % 5 == 2
        return {**answer, "outcomes": {"score": self.wrong if is_wrong else 0.7}}


@pytest.mark.slow
def test_an_outcome_out_of_range_is_asked_again_and_nothing_else(tmp_path):
    constraints = {"constraints": ["score >= 0.5"], "repeats": 0}
    before, after = Scored(-1.0), Scored(0.7)
    for _ in range(2):  # what was paid for is kept, whatever it is
        with pytest.raises(InputError, match=r"query=\d+: score=-1.0 must lie in \[0, 1\]"):
            select(tmp_path / "june", before, ["nano", "mini", "pro"], **constraints)
    assert len(before.asked) == len({*before.asked})
    wrong = [asked for asked in before.asked if asked[0] == "mini" and int(asked[2][6:]) % 5 == 2]
    july = {"continue_from": tmp_path / "june", **constraints}
    result = select(tmp_path / "july", after, ["nano", "mini", "pro"], **july)
    assert len(wrong) > 0
    assert {*before.asked} & {*after.asked} == {*wrong}
    assert result.certified


@pytest.mark.slow
def test_a_failed_answer_of_the_reference_needs_no_outcome(tmp_path):
    before, after = Scored(0.7), Scored(0.7)
    select(tmp_path / "june", before, ["nano", "mini", "pro"], repeats=0)
    july = {"continue_from": tmp_path / "june", "constraints": ["score >= 0.5"], "repeats": 0}
    select(tmp_path / "july", after, ["nano", "mini", "pro"], **july)
    assert ("pro", "pro", "query 7") in before.asked
    assert not {*before.asked} & {*after.asked}
