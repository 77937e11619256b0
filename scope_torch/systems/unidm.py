"""The three UniDM systems of the paper: data transformation, imputation and entity resolution.

Modules and edges are from UniDM (arXiv:2405.06510); prompts and code are new. Modules pass text to
each other. If a reply is empty or missing, the module passes on its inputs as plain text, so that
the modules after it still have something to work with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from scope_torch.errors import InputError
from scope_torch.systems.graph import CompoundSystem, Inputs, Module, ParseError
from scope_torch.systems.prompt_files import fingerprint, one_call, render

BLANK = "____"
ER_SLOTS = ("parse_a_parse_b_match", "parse_cloze_answer")


def data_transformation() -> CompoundSystem:
    """UniDM-DT: rewrites a value as an instruction and demonstrations say.

    Fields of a query: `instruction` (string), `demonstrations` (pairs of source and target),
    `source` (string). Modules `pattern`, `instruction` and `target_prompt` run in parallel; `merge`
    reads the first two, `answer` reads `merge` and `target_prompt`.

    Examples:
        >>> [module.name for module in data_transformation().modules]
        ['pattern', 'instruction', 'merge', 'target_prompt', 'answer']
    """
    pattern = _module(
        "unidm_dt/pattern", ("demonstrations",), 80, _demonstrations, values=_with_demonstrations
    )
    # This module reads the field `instruction` of the query; `merge` reads this module's output.
    instruction = _module(
        "unidm_dt/instruction", ("instruction",), 40, lambda inputs: inputs["instruction"]
    )
    merge = _module(
        "unidm_dt/merge",
        ("pattern", "instruction", "demonstrations"),
        100,
        lambda inputs: f"{inputs['pattern']}\n{inputs['instruction']}",
        values=_with_demonstrations,
    )
    target_prompt = _module(
        "unidm_dt/target_prompt",
        ("demonstrations", "source"),
        256,  # it copies the demonstrations
        _unfinished,
        values=_with_demonstrations,
    )
    answer = _module("unidm_dt/answer", ("merge", "target_prompt"), 48, _nothing, parse=first_line)
    return _system("unidm_dt", pattern, instruction, merge, target_prompt, answer)


def data_imputation() -> CompoundSystem:
    """UniDM-DI: fills in an attribute of a record with the help of similar records.

    Fields of a query: `records` (the retrieved records, as mappings), `target` (the record without
    the attribute), `attribute` (its name). `parse` turns each retrieved record into a sentence, in
    one call each. `cloze` turns these sentences and the target into a sentence with a blank; if its
    reply has no blank, the plain record with a blank is used. `answer` fills in the blank.

    Examples:
        >>> [module.name for module in data_imputation().modules]
        ['parse', 'cloze', 'answer']
    """
    parse = _describe("parse", "unidm_di/parse", ("records",), lambda inputs: inputs["records"])
    cloze = _module(
        "unidm_di/cloze",
        ("parse", "target", "attribute"),
        60,
        _target,
        parse=with_blank,
        values=lambda inputs: {**inputs, "target": _target(inputs)},
    )
    answer = _module("unidm_di/answer", ("cloze", "attribute"), 16, _nothing, parse=first_line)
    return _system("unidm_di", parse, cloze, answer)


def entity_resolution(slots: str = "parse_a_parse_b_match") -> CompoundSystem:
    """UniDM-ER: decides whether two records mean the same thing.

    Fields of a query: `entity_a`, `entity_b` (mappings). The output is the reply of the last
    module: whether the records mean the same thing, see `yes_or_no`.

    Args:
        slots: `parse_a_parse_b_match`: two modules describe one entity each, the third compares.
            `parse_cloze_answer`: one module describes both entities in two calls, the second writes
            a question, the third answers it.

    Raises:
        InputError: If `slots` is neither.

    Examples:
        >>> [module.name for module in entity_resolution("parse_cloze_answer").modules]
        ['parse', 'cloze', 'answer']
    """
    prompt = "unidm_er/parse"
    if slots == "parse_a_parse_b_match":
        parse_a = _describe("parse_a", prompt, ("entity_a",), lambda inputs: [inputs["entity_a"]])
        parse_b = _describe("parse_b", prompt, ("entity_b",), lambda inputs: [inputs["entity_b"]])
        match = _module("unidm_er/match", ("parse_a", "parse_b"), 16, _nothing)
        return _system("unidm_er", parse_a, parse_b, match)
    if slots == "parse_cloze_answer":
        entities = ("entity_a", "entity_b")
        parse = _describe(
            "parse", prompt, entities, lambda inputs: [inputs[name] for name in entities], "AB"
        )
        cloze = _module(
            "unidm_er/cloze",
            ("parse",),
            80,
            lambda inputs: f"{inputs['parse']}\nDo A and B mean the same?",
        )
        answer = _module("unidm_er/answer", ("cloze",), 16, _nothing)
        return _system("unidm_er", parse, cloze, answer, name="unidm_er_cloze")
    raise InputError(f"slots={slots!r} must be one of {list(ER_SLOTS)}")


def whole_reply(replies: Sequence[str], _inputs: Inputs) -> str:
    """The only reply without white space around it; raises ParseError if nothing is left."""
    (reply,) = replies
    if not reply.strip():
        raise ParseError("empty reply")
    return reply.strip()


def first_line(replies: Sequence[str], inputs: Inputs) -> str:
    """The first line of the only reply that is not blank; raises ParseError if there is none."""
    return whole_reply(replies, inputs).splitlines()[0].strip()


def with_blank(replies: Sequence[str], inputs: Inputs) -> str:
    """The only reply; raises ParseError if it has no blank, so nothing to fill in."""
    reply = whole_reply(replies, inputs)
    if BLANK not in reply:
        raise ParseError(f"no {BLANK} in the reply")
    return reply


def record_text(record: Mapping[str, Any]) -> str:
    """A record in one line, without the attributes that have no value."""
    known = {name: value for name, value in record.items() if value not in (None, "")}
    return "; ".join(f"{name}: {value}" for name, value in known.items())


def _system(prompts: str, *modules: Module, name: str | None = None) -> CompoundSystem:
    return CompoundSystem(name or prompts, modules, version=f"2-{fingerprint(prompts)}")


def _module(
    prompt: str,
    inputs: tuple[str, ...],
    max_tokens: int,
    fallback: Callable[[Inputs], str],
    parse: Callable[[Sequence[str], Inputs], str] = whole_reply,
    values: Callable[[Inputs], Mapping[str, str]] = dict,
) -> Module:
    """A module that makes one call, with the name of its prompt file."""
    name = prompt.partition("/")[2]
    return Module(name, inputs, one_call(prompt, values), parse, fallback, max_tokens)


def _describe(
    name: str,
    prompt: str,
    inputs: tuple[str, ...],
    records: Callable[[Inputs], Sequence[Mapping[str, Any]]],
    labels: str = "",
) -> Module:
    """A module that turns each record into a sentence, in one call each; one line a record."""

    def joined(texts: Sequence[str]) -> str:
        starts = [f"{label}: " for label in labels] or [""] * len(texts)
        return "\n".join(
            start + " ".join(text.split()) for start, text in zip(starts, texts, strict=True)
        )

    return Module(
        name=name,
        inputs=inputs,
        prompts=lambda given, prompting: [
            render(prompt, {"record": record_text(record)}, prompting) for record in records(given)
        ],
        parse=lambda replies, given: joined([whole_reply([text], given) for text in replies]),
        fallback=lambda given: joined([record_text(record) for record in records(given)]),
        max_tokens=60,
    )


def _nothing(_inputs: Inputs) -> str:
    return ""


def _demonstrations(inputs: Inputs) -> str:
    return "\n".join(f"{source} => {target}" for source, target in inputs["demonstrations"])


def _with_demonstrations(inputs: Inputs) -> Mapping[str, str]:
    return {**inputs, "demonstrations": _demonstrations(inputs)}


def _unfinished(inputs: Inputs) -> str:
    shown = [f'"{source}" becomes "{target}".' for source, target in inputs["demonstrations"]]
    return "\n".join([*shown, f'"{inputs["source"]}" becomes'])


def _target(inputs: Inputs) -> str:
    """The record to complete, with a blank for its attribute."""
    return record_text({**inputs["target"], inputs["attribute"]: BLANK})
