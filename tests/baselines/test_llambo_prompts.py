"""LLAMBO's prompts and the parsers of the replies."""

import json
import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scope_torch.baselines.llambo_prompts import MAX_REPLY_CHARS, HistoryLine, Prompts
from scope_torch.problem import SelectionProblem

PROBLEM = SelectionProblem(
    name="qa",
    modules=("plan", 'solve "it"'),
    llms=(("a b", "c/d:e", "f;##1"), ("a b", "日本\n-mini")),
    num_queries=7,
    theta_ref=(1, 0),
    reference_quality=0.8,
    reference_cost_usd=3.4e-5,
    epsilon=0.1,
)
PROMPTS = Prompts(PROBLEM, "It plans, then solves.", "Exams; exact match.", {"a b": (0.25, 2.0)})
HISTORY = (HistoryLine((0, 1), 1.5e-6, 0.9), HistoryLine((2, 1), 2.5e-3, 0.719))


def text(messages) -> str:
    assert [message["role"] for message in messages] == ["system", "user"]
    return messages[1]["content"]


def test_every_prompt_describes_the_problem():
    for messages in (
        PROMPTS.warm_start(5),
        PROMPTS.candidate(HISTORY, 1e-6),
        PROMPTS.predict(HISTORY, (0, 0)),
    ):
        prompt = text(messages)
        lines = prompt.split("\n")
        assert "System: It plans, then solves." in lines
        assert "Exams; exact match.; 7 queries" in prompt
        assert json.dumps(["plan", 'solve "it"']) in prompt
        assert '"plan": ["a b", "c/d:e", "f;##1"]' in lines
        assert '{"llm": "a b", "input": 0.25, "output": 2.0}' in lines
        assert '"c/d:e", "input"' not in prompt  # its price is not known
        reference = '{"plan": "c/d:e", "solve \\"it\\"": "a b"}'
        assert f"Reference: {reference} -> cost 0.034, quality 0.8" in lines
        assert "quality at least 0.72;" in prompt
        assert "USD per 1000 queries" in prompt


def test_without_prices_there_is_no_table():
    assert "Prices" not in text(Prompts(PROBLEM).warm_start(5))


def test_warm_start_asks_for_as_many_as_wanted():
    assert "propose 5 assignments" in text(PROMPTS.warm_start(5))
    assert "JSON list" in text(PROMPTS.warm_start(5))


def test_candidate_prompt_shows_the_history_and_a_target_line():
    lines = text(PROMPTS.candidate(HISTORY, 4.25e-7)).split("\n")
    assignments = [PROMPTS.assignment(m.theta) for m in HISTORY]
    at = lines.index(f"cost 0.0015, quality 0.9, feasible -> {assignments[0]}")
    assert lines[at + 1] == f"cost 2.5, quality 0.719, infeasible -> {assignments[1]}"
    assert "cost at most 0.000425, quality at least 0.72, feasible -> ?" in lines


def test_prediction_prompt_shows_the_history_and_one_assignment():
    lines = text(PROMPTS.predict(HISTORY, (2, 0))).split("\n")
    assignments = [PROMPTS.assignment(m.theta) for m in HISTORY]
    at = lines.index(f"{assignments[0]} -> cost 0.0015, quality 0.9")
    assert lines[at + 1] == f"{assignments[1]} -> cost 2.5, quality 0.719"
    assert f"{PROMPTS.assignment((2, 0))} -> ?" in lines
    assert "## cost ; quality ##" in lines[-1]


@pytest.mark.parametrize("theta", [(0, 0), (1, 1), (2, 0), (2, 1)])
@pytest.mark.parametrize("form", ["## {} ##", "##{}##", "I take\n## {}\n## ok", "## a ## {} ##"])
def test_assignments_between_markers_are_read(theta, form):
    assert PROMPTS.parse_candidate(form.format(PROMPTS.assignment(theta))) == theta


@pytest.mark.parametrize("form", ["{}", "```json\n{}\n```", "Here you are: {} Enjoy!"])
def test_lists_of_assignments_are_read(form):
    thetas = [(0, 0), (2, 1)]
    listed = f"[{', '.join(map(PROMPTS.assignment, thetas))}]"
    assert PROMPTS.parse_warm_start(form.format(listed)) == thetas


def test_wrong_entries_of_a_list_are_left_out():
    good = json.loads(PROMPTS.assignment((0, 1)))
    wrong = [3, None, {}, {"plan": "a b"}, {**good, "plan": "gpt-9"}, {**good, "plan": 0},
             {**good, "x": "a b"}, {**good, "plan": ["a b"]}, {**good, "plan": "A B"}]  # fmt: skip
    assert PROMPTS.parse_warm_start(json.dumps([*wrong, good])) == [(0, 1)]
    assert PROMPTS.parse_warm_start("[]") == []


ONE = PROMPTS.assignment((0, 0))
MALFORMED = ["", "#", "##", "## ##", "## {} ##", ONE, f"## {ONE}", f"## {ONE[:-1]} ##",
             f"## [{ONE}] ##", f"## {ONE} {ONE} ##", "##{" * 5000, '## {"plan": ' * 2000,
             f"## {ONE} ##".rjust(MAX_REPLY_CHARS + 1),
             "## {\"plan\": \"a b\", \"plan\": \"a b\", \"solve \\\"it\\\"\": \"a b\"} ##",
             "## {'plan': 'a b'} ##", "## __import__('os') ##"]  # fmt: skip


@pytest.mark.parametrize("reply", MALFORMED, ids=range(len(MALFORMED)))
def test_malformed_candidates_are_none(reply):
    assert PROMPTS.parse_candidate(reply) is None


@pytest.mark.parametrize(
    "reply", ["", "none", "{}", "[", "[" * 15000, "[1, ", "[NaN", f"[{ONE}]".ljust(10**5), "]["]
)
def test_malformed_lists_are_none(reply):
    assert PROMPTS.parse_warm_start(reply) is None


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("## 1.5 ; 0.7 ##", (1.5e-3, 0.7)),
        ("##2;1##", (2e-3, 1.0)),
        ("well:\n##  1e-3 ;.5 ## sure", (1e-6, 0.5)),
        ("## 0 ; 0. ##", (0.0, 0.0)),
        *((reply, None) for reply in [
            "", "1.5 ; 0.7", "## 1.5 , 0.7 ##", "## 1.5 ; 70 ##", "## 1 ; -0.1 ##",
            "## -1 ; 0.5 ##", "## nan ; 0.5 ##", "## inf ; 0.5 ##", "## 1e999 ; 0.5 ##",
            "## 9e998 ; 0.5 ##", "## 1.5 ; ##", "## cost ; quality ##", "## 1.5 ; 0.7",
            "## $1.5 ; 0.7 ##",
            f"## {'9' * 5000} ; 0.5 ##", " " * 10**5 + "## 1 ; 1 ##",
        ]),
    ],
)  # fmt: skip
def test_predictions_are_read_or_none(reply, expected):
    assert PROMPTS.parse_prediction(reply) == expected


PIECES = st.sampled_from(
    ["##", " ", "{", "}", "[", "]", ";", '"', ":", ",", '"plan"', '"a b"', "1", "-", ".", "e",
     "9e99", "NaN", "Infinity", "null", ONE, "\\u0000", "\ud800", "\n", "0.5"]
)  # fmt: skip
REPLIES = st.text() | st.lists(PIECES, max_size=40).map("".join)


@pytest.mark.slow
@given(REPLIES)
@example("## 1e309 ; 1e-999 ##")
def test_no_reply_is_a_traceback(reply):
    space = PROBLEM.space
    candidate = PROMPTS.parse_candidate(reply)
    assert candidate is None or space.check(candidate) == candidate
    for theta in PROMPTS.parse_warm_start(reply) or []:
        assert space.check(theta) == theta
    prediction = PROMPTS.parse_prediction(reply)
    assert prediction is None or (0 <= prediction[0] < math.inf and 0 <= prediction[1] <= 1)
