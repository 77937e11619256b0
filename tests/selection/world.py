"""Forty questions, and an upstream whose LLMs know more of them the dearer they are."""

import re

from serve.fake_upstream import LLMS, FakeUpstream, Say

LLM_NAMES = list(LLMS)
QUESTIONS = [(f"What is {i} + {i}?", str(2 * i)) for i in range(40)]
REFERENCE = {"planner": "large", "solver": "large"}
# The questions that an LLM gets right: tiny one of three, small two of three, medium all but one of
# 25, large all.
_KNOWS = {
    "tiny": lambda i: i % 3 == 0,
    "small": lambda i: i % 3 > 0,
    "medium": lambda i: i % 25 > 0,
    "large": lambda _: True,
}


def upstream() -> FakeUpstream:
    return FakeUpstream(answer)


def answer(request: dict) -> Say:
    """A plan is `good` or `poor`; a good solver with a good plan gives the right answer."""
    prompt = request["messages"][-1]["content"]
    number = int(re.search(r"is (\d+) ", prompt)[1])
    llm = request["model"].removeprefix("vendor/").removesuffix("-1")
    knows = _KNOWS[llm](number)
    if prompt.startswith("Plan: "):
        return Say("good" if knows else "poor")
    return Say(str(2 * number) if knows and prompt.endswith("good") else "no idea")
