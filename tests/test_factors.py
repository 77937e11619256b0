"""`LLM`: choices with factors, their names, and what they share."""

import copy
import json
import pickle

import pytest

from scope_torch import LLM, InputError
from scope_torch.factors import choices, levels_of, product


@pytest.mark.parametrize(
    ("factors", "name"),
    [
        ({}, "Kimi K2.5"),
        ({"effort": "low", "prompt": None}, "Kimi K2.5 effort=low"),
        ({"temperature": 0.2, "k": 8, "tools": True}, "Kimi K2.5 temperature=0.2 k=8 tools=True"),
        ({"temperature": 1.0, "x": "1e-05", "y": 1e-05}, "Kimi K2.5 temperature=1 x=1e-05 y=1e-05"),
    ],
)
def test_a_choice_is_its_name(factors, name):
    llm = LLM("Kimi K2.5", **factors)
    assert llm == name
    assert json.loads(json.dumps({llm: llm})) == {name: name}
    for same in (LLM.parse(name), copy.deepcopy(llm), pickle.loads(pickle.dumps(llm)), LLM(llm)):
        assert (same, same.llm, same.factors) == (name, "Kimi K2.5", llm.factors)
        assert type(same) is LLM
    assert type(str(llm)) is str
    assert llm.factors == {
        n: float(v) if n in "xy" else v for n, v in factors.items() if v is not None
    }


def test_a_factor_is_an_attribute():
    llm = LLM("nano", prompt="v1")
    assert llm.prompt == "v1"
    assert LLM(llm, effort="low") == "nano prompt=v1 effort=low"
    with pytest.raises(AttributeError, match=r"nano prompt=v1 has no factor 'effort'; .*'prompt'"):
        _ = llm.effort


@pytest.mark.parametrize(
    "factors",
    [{"prompt": "two words"}, {"prompt": "a=b"}, {"prompt": "a,b"}, {"prompt": ""}, {"title": "x"},
     {"factors": "x"}, {"two words": 1}, {"effort": ["low"]}],
)  # fmt: skip
def test_what_no_name_can_say(factors):
    with pytest.raises(InputError, match="nano"):
        LLM("nano", **factors)


def test_names_of_llms_stay():
    for name in ("gpt-4o", "a b", "openai/gpt:free", "x=1", " low=", "effort=low x"):
        assert LLM.parse(name).llm == name
        assert LLM.parse(name).factors == {}


def test_products():
    made = choices({"llm": ["a", LLM("b", size="s")], "effort": ["low", None]})
    assert made == ["a effort=low", "a", "b size=s effort=low", "b size=s"]
    assert choices(["a", "b"]) == ["a", "b"]
    for wrong in ({"effort": ["low"]}, {"llm": "nano"}, {"llm": []}, {"llm": ["a"], "effort": 3}):
        with pytest.raises(InputError):
            choices(wrong)


def test_levels_say_what_choices_share():
    made = [*product(llm=["a", "b"], effort=["low", "high"]), LLM("c", prompt="v1"), "d"]
    (levels,) = levels_of([made])
    assert levels == ((0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 1, 0), (2, 2, 1), (3, 2, 0))
    assert levels_of([["a effort=low"], ["b"]]) is None
    assert levels_of([["b", "a"], [LLM("a", effort=1)]]) == (((0,), (1,)), ((0, 0),))
