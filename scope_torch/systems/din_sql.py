"""DIN-SQL: turns a question about a database into a SQLite query, in four steps.

Modules, labels and edges are from DIN-SQL (arXiv:2304.11015); prompts and code are new. As there,
every LLM gets worked examples; here they ask an invented database of ferries.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from scope_torch.llm.chat import Message
from scope_torch.systems.graph import CompoundSystem, Inputs, Module, ParseError
from scope_torch.systems.prompt_files import fingerprint, one_call, render

PLACEHOLDER = "SELECT 'no query'"  # runs on every database, and answers no question
CONTEXT = ("question", "evidence", "schema")
_TEMPLATES = {
    "EASY": "din_sql/generation_easy",
    "NON-NESTED": "din_sql/generation_non_nested",
    "NESTED": "din_sql/generation_nested",
}

# Hyphens as LLMs write them: "-", the Unicode hyphens and dashes, a blank, or none.
_LABEL = r"(NON[\s_\-\u2010-\u2015]?NESTED|NESTED|EASY)\b"
_MARKED_LABEL = re.compile(r"\blabel\b\W{0,9}" + _LABEL, re.IGNORECASE)
_BARE_LABEL = re.compile(r"\b" + _LABEL)  # only in capitals: "easy" is also a word
_SUB_QUESTIONS = re.compile(r"sub.?questions?\b\W*(.*)", re.IGNORECASE | re.DOTALL)
_BULLET = re.compile(r"^\W*(?:\d{1,2}[.)])?\s*")

_LINKS = re.compile(r"\blinks?\b[*_`]*[ \t]*:", re.IGNORECASE)
_LIST = re.compile(r"\[[^\[\]]+\]")

# A cut-off reply may lack the closing fence.
_FENCED = re.compile(r"```(?:[ \t]*(?:\w*[ \t]*\n|sql(?:ite)?\b))?(.*?)(?:```|\Z)", re.S | re.I)
# White space or a comment; its length is bounded, because many may begin and none end. It ends at
# its first */: else several may be one comment or more, in as many ways as there are to part them.
_GAP = r"(?:\s|--[^\n]{0,500}\n|/\*(?:[^*]|\*(?!/)){0,500}+\*/)"
_NAME = r"""(?:\w+|"[^"]*"|`[^`]*`|\[[^\[\]]*\])"""
_QUERY = (
    rf"\(*(?:SELECT\b|WITH\b{_GAP}+(?:RECURSIVE\s+)?{_NAME}\s*(?:\([^()]*\)\s*)?"
    r"(?<!\w)AS\s*(?:(?:NOT\s+)?MATERIALIZED\s*)?\()"
)
_BEGINS_BLOCK = re.compile(f"{_GAP}*{_QUERY}", re.IGNORECASE)
_BEGINS_LINE = re.compile(r"^[ \t]*(?:SQL\w*[ \t]*:[ \t]*)?(" + _QUERY + ")", re.I | re.M)
_IN_PROSE = re.compile(r"\b(" + _QUERY + ")")  # only in capitals: "select" is also a word
_PARAGRAPH_END = re.compile(r"\n[ \t]*\n|```")
_QUOTED = r"""--[^\n]*|/\*(?s:.*?)(?:\*/|\Z)|'[^']*'|"[^"]*\""""
_STATEMENT = re.compile(rf"(?:{_QUOTED}|`[^`]*`|[^;])*+")
_QUOTED_OR_BACKTICK = re.compile(f"{_QUOTED}|`")


class Classification(NamedTuple):
    """Class of the query by its complexity, and sub-questions to answer first."""

    label: str  # EASY | NON-NESTED | NESTED
    sub_questions: tuple[str, ...] = ()  # only if NESTED


def din_sql(max_tokens: int = 2000) -> CompoundSystem:
    """DIN-SQL: `schema_linking`, `classification`, `generation`, `correction`, one call each.

    Fields of a query: `question`, `evidence` (a hint, may be empty), `schema` (tables with sample
    rows and descriptions, as text). The output is a SQLite query.

    Args:
        max_tokens: Longest reply of each module, in tokens. The prompts ask for much shorter
            replies; a lower limit saves time with a small LLM that writes too much.

    Examples:
        >>> [module.name for module in din_sql().modules]
        ['schema_linking', 'classification', 'generation', 'correction']
    """
    schema_linking = Module(
        name="schema_linking",
        inputs=CONTEXT,
        prompts=one_call("din_sql/schema_linking"),
        parse=parse_links,
        fallback=lambda _: "[]",
        max_tokens=max_tokens,
    )
    classification = Module(
        name="classification",
        inputs=(*CONTEXT, "schema_linking"),
        prompts=one_call("din_sql/classification"),
        parse=parse_classification,
        fallback=lambda _: Classification("NESTED"),
        max_tokens=max_tokens,
    )
    generation = Module(
        name="generation",
        inputs=(*CONTEXT, "schema_linking", "classification"),
        prompts=_generation_prompts,
        parse=extract_sql,
        fallback=lambda _: "",  # `correction` may still write one
        max_tokens=max_tokens,
    )
    correction = Module(
        name="correction",
        inputs=(*CONTEXT, "generation"),
        prompts=one_call("din_sql/correction"),
        parse=extract_sql,
        fallback=lambda inputs: inputs["generation"] or PLACEHOLDER,
        max_tokens=max_tokens,
    )
    return CompoundSystem(
        "din_sql",
        (schema_linking, classification, generation, correction),
        version=f"2-{max_tokens}-{fingerprint('din_sql')}",
    )


def _generation_prompts(inputs: Inputs, prompting: str) -> list[tuple[Message, ...]]:
    label, sub_questions = inputs["classification"]
    listed = "\n".join(f"- {question}" for question in sub_questions) or "none"
    return [render(_TEMPLATES[label], {**inputs, "sub_questions": listed}, prompting)]


def parse_links(replies: Sequence[str], _inputs: Inputs) -> str:
    """The list after the last "Links:", else the last list in brackets; in one line."""
    (reply,) = replies
    if marked := list(_LINKS.finditer(reply)):
        rest = reply[marked[-1].end() :]
        text = rest[rest.find("[") : rest.rfind("]") + 1] if "[" in rest else ""
        # The list was cut short, or has no brackets: take its first line.
        text = text or rest.strip("*_` \t\r\n").partition("\n")[0]
    else:
        text = (_LIST.findall(reply) or [""])[-1]
    if not text:
        raise ParseError("no list of links")
    return " ".join(text.split())


def parse_classification(replies: Sequence[str], _inputs: Inputs) -> Classification:
    """The label, and the sub-questions if it is NESTED."""
    (reply,) = replies
    found = _MARKED_LABEL.findall(reply) or _BARE_LABEL.findall(reply)
    if not found:
        raise ParseError("no label")
    label = found[-1].upper()
    if label.startswith("NON"):
        return Classification("NON-NESTED")
    if label == "EASY":
        return Classification("EASY")
    listed = _SUB_QUESTIONS.search(reply)
    lines = [_BULLET.sub("", line).strip() for line in (listed[1] if listed else "").splitlines()]
    questions = [line for line in lines if line and line.lower().strip(".") != "none"]
    return Classification("NESTED", tuple(questions[:10]))


def extract_sql(replies: Sequence[str], _inputs: Inputs) -> str:
    """The query in a reply, without its semicolon; raises ParseError if there is none.

    Takes the last fenced block that begins with a query. Without one, takes the last paragraph with
    a line that begins with a query; without that, the last paragraph with a query in capitals
    anywhere. A query begins with SELECT or WITH.
    """
    (reply,) = replies
    for block in reversed(_FENCED.findall(reply)):
        if _BEGINS_BLOCK.match(block):
            return _first_statement(block)
    paragraphs = _PARAGRAPH_END.split(reply)
    for begin in (_BEGINS_LINE, _IN_PROSE):
        for paragraph in reversed(paragraphs):
            if found := begin.search(paragraph):
                return _first_statement(paragraph[found.start(1) :])
    raise ParseError("no query")


def _first_statement(text: str) -> str:
    matched = _STATEMENT.match(text)
    statement = (matched[0] if matched else text).strip().rstrip(" .")
    ticks = [one.start() for one in _QUOTED_OR_BACKTICK.finditer(statement) if one[0] == "`"]
    # An odd number of backticks: the last one closes a quote that began before the query.
    return statement[: ticks[0]] if len(ticks) % 2 else statement
