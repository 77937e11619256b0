"""`LLM`: choices with factors, their names, and what they share."""

import copy
import enum
import json
import math
import pickle

import numpy as np
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
        ({"élan": 1, "提示": "v1"}, "Kimi K2.5 élan=1 提示=v1"),
        ({"region": "nan", "size": "inf"}, "Kimi K2.5 region=nan size=inf"),
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
     {"factors": "x"}, {"two words": 1}, {"effort": ["low"]}, {"हिन्दी": 1}, {"x": math.nan}],
)  # fmt: skip
def test_what_no_name_can_say(factors):
    with pytest.raises(InputError, match="nano"):
        LLM("nano", **factors)


def test_names_of_llms_stay():
    for name in ("gpt-4o", "a b", "openai/gpt:free", "x=1", " low=", "effort=low x"):
        assert LLM.parse(name).llm == name
        assert LLM.parse(name).factors == {}


@pytest.mark.parametrize(
    "name", ["nano title=x", "nano index=v2 effort=low", "nano llm=x", "nano x=1 x=2", "nano ²=1"]
)
def test_a_name_whose_words_are_no_factors_is_that_of_an_llm(name):
    assert (LLM.parse(name), LLM.parse(name).llm, LLM.parse(name).factors) == (name, name, {})


def test_a_name_stays_as_it_was_written():
    written = LLM.parse("nano temperature=1.0 on=True")
    assert written == "nano temperature=1.0 on=True"
    assert repr(written.factors) == "{'temperature': 1, 'on': True}"
    assert pickle.loads(pickle.dumps(written)) == written


def test_the_rule_of_the_name_of_a_factor_is_told():
    for name in ("index", "factors", "parse", "two words"):
        with pytest.raises(
            InputError, match="take an identifier that is no method of str, nor llm"
        ):
            LLM("nano", **{name: 1})


def test_names_that_are_an_enum_or_from_numpy():
    class Name(str, enum.Enum):  # noqa: UP042 - a StrEnum says its value
        NANO = "nano"
        LOW = "low"

    llm = LLM(Name.NANO, effort=Name.LOW, k=np.int64(3), temperature=np.float64(0.5), x="2.0")
    assert llm == "nano effort=low k=3 temperature=0.5 x=2"
    assert repr((llm.llm, llm.factors)) == repr(("nano", LLM.parse(str(llm)).factors))


@pytest.mark.parametrize("name", ["", " nano", "na\nno", "nano effort=low", None, 3])
def test_what_no_llm_with_factors_is_named(name):
    with pytest.raises(InputError, match="the name of an LLM"):
        LLM(name, prompt="v1")


def test_products():
    made = choices({"llm": ["a", LLM("b", size="s")], "effort": ["low", None]})
    assert made == ["a effort=low", "a", "b size=s effort=low", "b size=s"]
    assert choices(["a", "b"]) == ["a", "b"]
    none = {"effort": ["low"]}, {"llm": "nano"}, {"llm": []}, {"llm": ["a"], "effort": 3}
    for wrong in (*none, {"llm": ["a", None]}, {"llm": ["a"], 3: [1]}):
        with pytest.raises(InputError):
            choices(wrong)


def test_levels_say_what_choices_share():
    made = [*product(llm=["a", "b"], effort=["low", "high"]), LLM("c", prompt="v1"), "d"]
    (levels,) = levels_of([made])
    assert levels == ((0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 1, 0), (2, 2, 1), (3, 2, 0))
    assert levels_of([["a effort=low"], ["b"]]) is None
    with pytest.raises(InputError, match="'a x=1 y=2' and 'a y=2 x=1' are the same choice"):
        levels_of([["b"], [LLM("a", x=1, y=2), LLM("a", y=2, x=1)]])
    assert levels_of([["b", "a"], [LLM("a", effort=1)]]) == (((0,), (1,)), ((0, 0),))
