"""Tokens as applications return them: numbers, or the usage of a reply as a client gives it."""

from dataclasses import replace

import pytest

import scope_torch as st
from scope_torch.errors import InputError
from scope_torch.evaluators.application import Application, Item
from scope_torch.evaluators.function import FunctionEvaluator
from scope_torch.evaluators.tokens import tokens_of
from scope_torch.llm.billing import Usage
from scope_torch.llm.prices import LLMInfo
from scope_torch.observation import Request

MINI = LLMInfo("mini", 1.0, 4.0, cached_input_usd_per_mtok=0.1)
REPORT = {
    "prompt_tokens": 1000,
    "completion_tokens": 50,
    "total_tokens": 1050,
    "prompt_tokens_details": {"cached_tokens": 600, "audio_tokens": None},
}
ANTHROPIC = {"input_tokens": 400, "cache_read_input_tokens": 600, "output_tokens": 50}
USD = (400 * 1.0 + 600 * 0.1 + 50 * 4.0) / 1e6


def completion_usage():
    """As `client.chat.completions.create(...).usage` is."""
    types = pytest.importorskip("openai.types")
    return types.CompletionUsage.model_validate(REPORT)


class Dumps:
    """A usage of a client that is made of pydantic's models."""

    def model_dump(self):
        return dict(ANTHROPIC)


KINDS = {
    "Usage": lambda: Usage(1000, 50, 600),
    "dict of OpenAI": lambda: REPORT,
    "dict of Anthropic": lambda: ANTHROPIC,
    "object of Anthropic": Dumps,
    "object of OpenAI": completion_usage,
    "dict of an object": lambda: dict(completion_usage()),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_usage_is_priced_with_its_cached_tokens(kind):
    problem = st.SelectionProblem(
        "p", ("plan", "answer"), (("mini",),) * 2, 1, theta_ref=(0, 0), reference_quality=1.0,
        reference_cost_usd=1.0, epsilon=0.1,
    )  # fmt: skip
    app = Application(
        lambda _, text: (text, {"answer": KINDS[kind](), "plan": (10, 1)}),
        lambda expected, output: expected == output,
        outcomes=["input_tokens", "output_tokens"],
    )
    evaluator = FunctionEvaluator(problem, app, [Item(0, "x", "x")], prices={"mini": MINI})
    (made,) = evaluator.evaluate([Request((0, 0), 0)])
    assert made.module_cost_usd == pytest.approx((14e-6, USD))
    assert made.module_tokens == ((10, 1), (1000, 50))
    assert made.outcomes == {"input_tokens": 1010, "output_tokens": 51}


@pytest.mark.parametrize(
    ("used", "words"),
    [
        ({"tokens": 3}, "is no usage of a reply; give its prompt_tokens and completion_tokens"),
        ({}, "is no usage of a reply"),
        (7, "7 are no tokens; give (prompt tokens, completion tokens), or the usage"),
        ((1, 2, 3), "are no tokens"),
        (("many", 2), "are no tokens"),
        (("10", "2"), "are no tokens"),
        ((-1, 2), "must be at least 0"),
        (Usage(-1, 2), "must be at least 0"),
    ],
)
def test_what_is_no_usage_says_what_to_give(used, words):
    with pytest.raises(InputError) as caught:
        tokens_of(used)
    assert words in str(caught.value)


@pytest.mark.parametrize("returned", [REPORT, Dumps()])
def test_a_usage_without_its_module_says_so(returned):
    def selected():
        st.select(
            lambda _, text: (text, returned),
            models=["mini", "pro"], reference="mini", dataset=[("x", "x")], budget_usd=1,
            metric=st.metrics.exact_match, max_quality_loss=0.1,
            prices={"mini": MINI, "pro": replace(MINI, name="pro")},
        )  # fmt: skip

    with pytest.raises(InputError, match="by module"):
        selected()
