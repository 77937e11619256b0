"""Replies and settings nobody meant: refused in one line, or what they seem to be."""

import contextlib
import json
import math
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reliability.fuzzing import JSON, damaged, fuzzed, no_hang
from tables import make_task

from scope_torch.baselines.chat_client import _completion, _Refused
from scope_torch.baselines.llambo_prompts import Prompts
from scope_torch.baselines.llm_transcript import Transcript
from scope_torch.cli import run as run_script
from scope_torch.errors import InputError
from scope_torch.llm.billing import BadReply, read_reply
from scope_torch.systems import din_sql, unidm
from scope_torch.systems.graph import ParseError

TASK = make_task(1, (3, 3), 6)

# What LLMs and servers say

REPLY = {
    "choices": [{"message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 9,
              "prompt_tokens_details": {"cached_tokens": 1}},
}  # fmt: skip


@st.composite
def other_leaves(draw: st.DrawFn, whole: Any) -> Any:
    """JSON in which a value, at any depth, is another one."""
    if draw(st.integers(0, 3)) == 0 or not isinstance(whole, dict | list) or not whole:
        return draw(JSON)
    copy = json.loads(json.dumps(whole))
    key = draw(st.sampled_from(list(copy) if isinstance(copy, dict) else list(range(len(copy)))))
    copy[key] = draw(other_leaves(copy[key]))
    return copy


@pytest.mark.slow
@fuzzed(
    st.one_of(other_leaves(REPLY), damaged(json.dumps(REPLY).encode()), st.just("[" * 99999)),
    100,
    2000,
)
def test_chat_completions(content, folder):
    try:
        reply = read_reply(content)
    except BadReply as bad:
        usage, reply = bad.usage, None
    else:
        usage = reply.usage
        assert isinstance(reply.text, str)
        reply.text.encode()
        assert isinstance(reply.finish_reason, str)
    if usage is not None:
        assert 0 <= usage.cached_tokens <= usage.prompt_tokens
        assert usage.completion_tokens >= 0
    body = content if isinstance(content, bytes | str) else json.dumps(content)
    with contextlib.suppress(_Refused):
        completion = _completion(body.encode() if isinstance(body, str) else body, 3)
        assert 1 <= len(completion.texts) <= 3
        assert min(completion.prompt_tokens, completion.completion_tokens) >= 0


SAID = st.one_of(
    st.text(max_size=60),
    st.lists(
        st.sampled_from(
            ["Links:", "[", "]", "a.b", "Label:", "NESTED", "NON-NESTED", "EASY", "sub-questions",
             "\n", "```", "```sql", "SELECT", "WITH x AS (", "'", '"', "`", ";", "--", "____", "##",
             '{"module0": "llm1", "module1": "llm0"}', "1.5", "; ", "1e999", "-1", "nan",
             "[" * 3000, '"' * 2000, "'" * 3001, "\\", "\ud800", " " * 500]
        ),
        max_size=12,
    ).map(" ".join),
)  # fmt: skip
PARSERS = [
    din_sql.parse_links, din_sql.parse_classification, din_sql.extract_sql,
    unidm.whole_reply, unidm.first_line, unidm.with_blank,
]  # fmt: skip


@pytest.mark.slow
@fuzzed(SAID, 100, 2000)
def test_replies(text, folder):
    for parser in PARSERS:
        with contextlib.suppress(ParseError):
            output = parser([text], {})
            assert output
            if parser is din_sql.parse_classification:
                assert output.label in ("EASY", "NON-NESTED", "NESTED")
    prompts = Prompts(TASK.problem)
    thetas = [prompts.parse_candidate(text), *(prompts.parse_warm_start(text) or [])]
    for theta in thetas:
        assert theta is None or len(TASK.problem.names(theta)) == 2
    if (predicted := prompts.parse_prediction(text)) is not None:
        assert 0 <= predicted[0] < math.inf
        assert 0 <= predicted[1] <= 1


@fuzzed(JSON | st.binary(max_size=30), 40, 500)
def test_transcripts(value, folder):
    path = folder / "transcript.jsonl"
    line = value if isinstance(value, bytes) else json.dumps({"texts": value, "key": "k"}).encode()
    path.write_bytes(
        line + b"\n" + json.dumps(value if not isinstance(value, bytes) else 0).encode()
    )
    Transcript(path)


# Settings

KEYS = [
    "seed", "budget_usd", "base", "method.alpha", "method.lam", "method.batch_size",
    "method.gap_tolerance", "method.initial_pool", "method.prune", "method.name",
    "method.bounds.mode", "method.bounds.b_g", "method.bounds.b_c", "method.bounds.delta",
    "method.bounds", "task.name", "task.num_queries", "task.world_seed", "task.epsilon",
    "task.num_modules", "kernel", "kernel._target_", "device", "experiment", "deploy", "tracking",
]  # fmt: skip
VALUES = st.sampled_from(
    ["nan", "inf", "-inf", "-1", "0", "1e999", "1" * 30, "null", "[]", "[1,2]", "{a:1}", "''", "x",
     "true", "0.1", "1.5", "'../x'", "${oc.env:NOPE}", "${seed}", "${nowhere}", "???",
     "'a b'", "\\0"]
)  # fmt: skip


@pytest.mark.parametrize("count", [3, pytest.param(60, marks=pytest.mark.slow)])
def test_settings(cli, monkeypatch, count):
    """A search begins, or one line says why not."""

    def begin(*_: Any, **__: Any) -> None:
        raise InputError("begun")

    monkeypatch.setattr(run_script, "run", begin)
    override = st.tuples(st.sampled_from(KEYS), VALUES).map("=".join)

    @settings(max_examples=count, derandomize=True, database=None,
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(st.lists(override, min_size=1, max_size=2))
    def each(overrides: list[str]) -> None:
        with no_hang():
            status, out, err = cli(
                "task=synthetic", "method=scope", "task.num_queries=5", *overrides
            )
        assert status == 2
        assert err.startswith("scope-torch: ")
        assert len(err.splitlines()) == 1, err
        assert "Traceback" not in out + err
        assert "the traceback is in" not in err, (overrides, err)

    assert cli("task=synthetic") == (2, "", "scope-torch: begun\n")
    each()
