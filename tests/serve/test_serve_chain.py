"""The chain by itself: which configuration comes next, whatever fails and when."""

import itertools
import json
import random

import pytest
from serve.fake_upstream import Status

from scope_torch.serve.chain import Chain, trouble_of
from scope_torch.serve.upstream import Answer

FINE = Answer(200, {}, b'{"choices": []}')
DOWN = Answer(503, {}, b"{}")


def test_an_llm_that_fails_is_avoided_in_every_module_if_that_can_be():
    chain = Chain([{"a": "x", "b": "x"}, {"a": "y", "b": "x"}, {"a": "z", "b": "z"}])
    chain.fail("a", "x")
    assert chain.active == 2
    chain.fail("a", "z")
    assert chain.active == 1  # x has not failed in b
    chain.fail("b", "x")
    assert chain.active == 0  # each has failed


def test_only_configurations_of_the_chain_answer():
    """Not an LLM of one entry beside one of another entry, though both work."""
    chain = Chain([{"a": "x", "b": "x"}, {"a": "y", "b": "x"}, {"a": "x", "b": "y"}])
    chain.fail("a", "x")
    chain.fail("b", "x")
    assert [list(chain.attempts(module)) for module in "ab"] == [[chain.entries[0]]] * 2


def test_no_request_asks_an_llm_twice():
    """Not even if it has answered somebody else in the meantime."""
    chain, asked = Chain([{"a": "x"}, {"a": "y"}]), []
    for assignment in chain.attempts("a"):
        asked.append(assignment["a"])
        assert chain.judge("a", asked[-1], DOWN) == "503"
        assert chain.judge("a", asked[-1], FINE) is None
    assert asked == ["x", "y"]


@pytest.mark.slow
def test_any_order_of_failures():
    """Against the rule, said anew: no request asks an LLM twice, or one that is left alone."""
    draw = random.Random(4)
    for _ in range(300):
        now, failed_at = [0.0], {}
        entries = [{m: draw.choice("uvwxyz") for m in "abc"} for _ in range(draw.randint(1, 5))]
        chain = Chain(entries, 10.0, lambda now=now: now[0])
        for _ in range(40):
            now[0] += draw.choice([0.0, 0.5, 4.0, 11.0])
            module, asked = draw.choice("abc"), []
            alone = {pair for pair, at in failed_at.items() if now[0] < at + 10}
            open_ = [one for one in entries if alone.isdisjoint(one.items())]
            for assignment in chain.attempts(module):
                assert assignment in entries
                llm = assignment[module]
                assert assignment in open_ or (not asked and not open_)
                asked.append(llm)
                is_down = draw.random() < 0.6
                if (module, llm) in failed_at or is_down:
                    failed_at[module, llm] = now[0]
                assert chain.judge(module, llm, DOWN if is_down else FINE) == (
                    "503" if is_down else None
                )
                if not is_down:
                    failed_at.pop((module, llm), None)
                    break
            else:
                left = [one for one in open_ if one[module] not in asked]
                left = [
                    one for one in left
                    if not any(now[0] < failed_at.get(pair, -99) + 10 for pair in one.items())
                ]  # fmt: skip
                assert not left
            assert len(asked) == len(set(asked)) > 0


def test_bodies_that_are_no_code():
    odd = [b"", b"[]", b"null", b"7", b"{", b'"error"', b'{"error": "x"}', b'{"error": []}']
    odd += [b'{"error": {"code": ' + code + b"}}" for code in (b"[]", b"true", b"null", b"5e2")]
    odd += [b"[" * 5000, b'{"error": {"code": 503}}' + b" " * (1 << 17)]
    odd += [b'{"error": {"code": 503}, "choices": [{}]}']
    for status, body in itertools.product((200, 400), odd):
        assert trouble_of(Answer(status, {}, body)) is None
    assert trouble_of(Answer(200, {})) is None  # a stream


@pytest.mark.parametrize(
    "message",
    [
        "The model `gpt-4-32k` does not exist or you do not have access to it.",
        "model: claude-2.0",
        "models/gemini-1.0-pro is not found for API version v1beta",
        "The API deployment for this resource does not exist.",
        "No endpoints found for vendor/old:free.",
    ],
)
def test_what_providers_say_of_a_retired_llm(message):
    body = json.dumps({"error": {"message": message, "code": 404}}).encode()
    assert trouble_of(Answer(404, {}, body)) == trouble_of(Answer(200, {}, body)) == "404"


@pytest.mark.parametrize(
    ("reply", "trouble"),
    [
        ({"error": {"message": "x/old is not a valid model ID", "code": 400}}, "model_not_found"),
        ({"object": "error", "message": "Invalid model: old", "type": "invalid_model",
          "code": "1500"}, "invalid_model"),
        ({"error": {"message": "Model Not Exist", "type": "invalid_request_error",
                    "code": "invalid_request_error"}}, "model_not_found"),
        ({"error": {"message": "the model does not support images", "code": 400}}, None),
        ({"error": {"message": "tool_choice is not valid for this model", "code": None}}, None),
    ],
)  # fmt: skip
def test_a_400_that_says_so_in_words(reply, trouble):
    """OpenRouter, Mistral, DeepSeek; and what is a fault of the request."""
    assert trouble_of(Answer(400, {}, json.dumps(reply).encode())) == trouble


def test_waits_that_cannot_be_waited_for():
    for wait in ("", "soon", "-5", "nan", "0", "Thu, 99 Foo"):
        chain = Chain([{"a": "x"}, {"a": "y"}], 10.0, lambda: 0.0)
        limited = Answer(429, Status(429, headers={"retry-after": wait}).headers, b"{}")
        assert chain.judge("a", "x", limited) is None
        assert chain.judge("a", "x", limited) == "429"
        assert chain.active == 1
    for wait in ("inf", "1e300", "Thu, 01 Jan 2099 00:00:00 GMT"):
        now = [0.0]
        chain = Chain([{"a": "x"}, {"a": "y"}], 10.0, lambda now=now: now[0])
        assert chain.judge("a", "x", Answer(429, {"retry-after": wait}, b"{}")) == "429"
        now[0] = 3601.0
        assert chain.active == 0
