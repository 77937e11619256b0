"""The DIN-SQL graph, and how its replies are read."""

import contextlib
import re
import sqlite3
import time

import pytest
from fake_client import FakeClient, lost, run

from scope_torch.systems.din_sql import (
    PLACEHOLDER,
    Classification,
    din_sql,
    extract_sql,
    parse_classification,
    parse_links,
)
from scope_torch.systems.graph import ParseError
from scope_torch.systems.prompt_files import render

QUERY = {"question": "How many?", "evidence": "many is $n", "schema": "CREATE TABLE t (a)"}
REPLIES = {
    "schema_linking": "Thinking.\nLinks: [t.a]",
    "classification": "Label: EASY",
    "generation": "```sql\nSELECT draft\n```",
    "correction": "```sql\nSELECT final;\n```",
}


def test_outputs_reach_their_readers():
    client = FakeClient(REPLIES)
    result = run(din_sql(), QUERY, client)
    assert result.output == "SELECT final"
    for module in REPLIES:
        for text in ("How many?", "many is $n", "CREATE TABLE t (a)"):
            assert text in client.prompt(module)
    assert "Links: [t.a]" in client.prompt("classification")
    assert "Links: [t.a]" in client.prompt("generation")
    assert "```sql\nSELECT draft\n```" in client.prompt("correction")
    assert "[t.a]" not in client.prompt("correction")
    assert result.latency_s == 4.0  # a chain
    assert [module.parsed for module in result.modules.values()] == [True] * 4


def test_each_label_has_a_template_of_the_one_generation_slot():
    nested = "Label: NESTED\nSub-questions:\n- Who?\n2. Where?"
    sent = {}
    for reply in ("Label: EASY", "Label: NON-NESTED", nested):
        client = FakeClient(REPLIES | {"classification": reply})
        run(din_sql(), QUERY, client)
        sent[reply] = client.prompt("generation")
    assert len(set(sent.values())) == 3
    assert sent[nested].endswith("Sub-questions:\n- Who?\n- Where?")
    assert "single table" in sent["Label: EASY"]
    assert "with joins" in sent["Label: NON-NESTED"]


@pytest.mark.parametrize("bad", ["", "I cannot help with that.", lost()], ids=repr)
@pytest.mark.parametrize("module", REPLIES)
def test_fallbacks(module, bad):
    client = FakeClient(REPLIES | {module: bad})
    result = run(din_sql(), QUERY, client)
    assert [name for name, done in result.modules.items() if not done.parsed] == [module]
    if module == "schema_linking":
        assert "Links: []" in client.prompt("classification")
        assert "Links: []" in client.prompt("generation")
    if module == "classification":  # NESTED without sub-questions
        assert client.prompt("generation").endswith("Sub-questions:\nnone")
    if module == "generation":
        assert "```sql\n\n```" in client.prompt("correction")
    expected = "SELECT draft" if module == "correction" else "SELECT final"
    assert result.output == expected


def test_without_any_query_the_placeholder_comes_out():
    result = run(din_sql(), QUERY, FakeClient(dict.fromkeys(REPLIES, lost())))
    assert result.output == PLACEHOLDER
    assert result.modules["correction"].num_failed == 1


def test_the_limit_of_replies_is_part_of_the_version():
    client = FakeClient(REPLIES)
    run(din_sql(max_tokens=300), QUERY, client)
    assert {call.max_tokens for call in client.calls} == {300}
    assert din_sql(max_tokens=300).version != din_sql().version


@pytest.mark.parametrize(
    ("reply", "links"),
    [
        ("Links: [a.b, c.d = e.f, 'x y']", "[a.b, c.d = e.f, 'x y']"),
        ("Draft links: [a]\nFinal.\n**Links:** [b, `c d`]", "[b, `c d`]"),
        ("schema_links: [a]", "[a]"),
        ("Links:\n[\n  a.b,\n  c.d\n]", "[ a.b, c.d ]"),
        ("Links: [t.[my column], 'x']", "[t.[my column], 'x']"),
        ("Links: [a.b, c", "[a.b, c"),
        ("Links: a.b, c.d\nDone.", "a.b, c.d"),
        ("Links: []", "[]"),
        ("We need [x] and so\n[a.b, c.d]", "[a.b, c.d]"),
        ("LINKS: [姓名.年龄]", "[姓名.年龄]"),
    ],
)
def test_links(reply, links):
    assert parse_links([reply], {}) == links


@pytest.mark.parametrize("reply", ["", "\n", "Links:", "Links: \n", "nothing here", "a link"])
def test_no_links(reply):
    with pytest.raises(ParseError):
        parse_links([reply], {})


@pytest.mark.parametrize(
    ("reply", "label"),
    [
        ("Label: EASY", "EASY"),
        ("label: easy", "EASY"),
        ('**Label:** "NON-NESTED"', "NON-NESTED"),
        ("Label: non nested", "NON-NESTED"),
        ("Label: NON\u2011NESTED", "NON-NESTED"),
        ("NON_NESTED", "NON-NESTED"),
        ("It is not EASY as it needs a join: NON-NESTED.", "NON-NESTED"),
        ("This is easy to see: NESTED", "NESTED"),
        ("Label: EASY\nNot NESTED.", "EASY"),
    ],
)
def test_labels(reply, label):
    assert parse_classification([reply], {}) == Classification(label)


@pytest.mark.parametrize("reply", ["", "this is easy", "UNNESTED", "the label is missing"])
def test_no_label(reply):
    with pytest.raises(ParseError):
        parse_classification([reply], {})


@pytest.mark.parametrize(
    ("listed", "questions"),
    [
        ("Sub-questions:\n- Who?\n- Where is 5?", ("Who?", "Where is 5?")),
        ("**Sub-questions:**\n1. Who?\n\n2) Where?", ("Who?", "Where?")),
        ("subquestion: Who?", ("Who?",)),
        ("Sub-questions: none", ()),
        ("Sub-questions:\n- None.", ()),
        ("Sub-questions:", ()),
        ("", ()),
        ("Sub-questions:\n" + "- again?\n" * 500, ("again?",) * 10),
    ],
)
def test_sub_questions(listed, questions):
    parsed = parse_classification([f"Label: NESTED\n{listed}"], {})
    assert parsed == Classification("NESTED", questions)


def test_only_nested_queries_have_sub_questions():
    assert parse_classification(["Label: EASY\nSub-questions:\n- Who?"], {}).sub_questions == ()


@pytest.mark.parametrize(
    ("reply", "sql"),
    [
        ("SELECT a FROM b", "SELECT a FROM b"),
        ("  select a from b ;\n", "select a from b"),
        ("```sql\nSELECT a\nFROM b;\n```", "SELECT a\nFROM b"),
        ("```SQLite\nSELECT a\n```", "SELECT a"),
        ("```\nSELECT a\n```", "SELECT a"),
        ("```SELECT a FROM b```", "SELECT a FROM b"),
        ("```sql SELECT a FROM b```", "SELECT a FROM b"),
        ("```sql\nSELECT a FROM b WHERE", "SELECT a FROM b WHERE"),
        ("```sql\nSELECT first\n```\nBetter:\n```sql\nSELECT second\n```", "SELECT second"),
        ("```sql\nSELECT a\n```\nSample output:\n```\n1 | 2\n```", "SELECT a"),
        ("```sql\n-- it's a comment; really\nSELECT a\n```", "-- it's a comment; really\nSELECT a"),
        ("```sql\nSELECT a;\nSELECT b;\n```", "SELECT a"),
        ("```sql\nSELECT a WHERE b = 'x;y';\n```", "SELECT a WHERE b = 'x;y'"),
        ("```sql\nSELECT a WHERE b = 'it''s;';\n```", "SELECT a WHERE b = 'it''s;'"),
        ('```sql\nSELECT `a;b` FROM "c;d";\n```', 'SELECT `a;b` FROM "c;d"'),
        ("SELECT a FROM `b c`", "SELECT a FROM `b c`"),
        ("SELECT a\n```", "SELECT a"),
        ("SQL: SELECT a FROM b", "SELECT a FROM b"),
        ("Here it is:\nSELECT a\nFROM b\n\nIt selects a; with b.", "SELECT a\nFROM b"),
        ("SELECT first FROM b\n\nBetter:\nSELECT second FROM b", "SELECT second FROM b"),
        ("SELECT a FROM b WHERE c IN (\n  SELECT d FROM e\n)", None),
        ("WITH x AS (SELECT 1) SELECT * FROM x", None),
        ("WITH RECURSIVE x(n) AS (SELECT 1)\nSELECT n FROM x", None),
        ("(SELECT a FROM b) UNION (SELECT c FROM d)", None),
        ("SELECT a FROM b\n\nWith this query we count.", "SELECT a FROM b"),
        ("The query is SELECT a FROM b.", "SELECT a FROM b"),
        ("The query is `SELECT a FROM b`.", "SELECT a FROM b"),
        ("The query `SELECT a FROM b` gives it.", "SELECT a FROM b"),
        ("SELECT naïve FROM 表 WHERE x = '😀'", None),
    ],
)
def test_sql(reply, sql):
    assert extract_sql([reply], {}) == (reply if sql is None else sql)


@pytest.mark.parametrize(
    "sql",
    [
        "WITH top (a, b) AS (SELECT a, b FROM t) SELECT a FROM top",
        "WITH top(a) AS NOT MATERIALIZED (SELECT a FROM t) SELECT a FROM top",
        "with top as materialized(SELECT a FROM t) SELECT a FROM top",
        "WITH RECURSIVE r(n, m) AS (SELECT 1, 1 UNION SELECT n + 1, m FROM r) SELECT n FROM r",
        'WITH "my top" AS (SELECT a FROM t) SELECT a FROM "my top"',
        "WITH [my top] AS (SELECT a FROM t) SELECT a FROM [my top]",
        "WITH -- it's ours\n/* ; */ top AS (SELECT a FROM t) SELECT a FROM top",
        "/* the top; all */\nSELECT a FROM t",
        "SELECT a /* it's; all */ FROM t",
        "SELECT a FROM t WHERE b LIKE 'x`y'",
        'SELECT a AS "x`y" FROM `t`',
    ],
)
@pytest.mark.parametrize("reply", ["```sql\n{};\n```", "{}", "SQL: {};"])
def test_valid_sql_is_left_as_it_is(reply, sql):
    if not (sql.startswith("/*") and "```" not in reply):  # such a line may be prose
        assert extract_sql([reply.format(sql)], {}) == sql


def test_a_backtick_that_is_no_quote_of_sql_ends_the_query():
    assert extract_sql(["Run `SELECT a FROM t WHERE b = 'x`y'` now."], {}).endswith("'x`y'")


@pytest.mark.parametrize(
    "reply",
    [
        "",
        " \n ",
        "I cannot write a query.",
        "You should select the rows with the joins.",
        "With a join, as said.",
        "With Pandas (a library) I would not.",
        "```sql\nDROP TABLE t\n```",
        "```\n```",
        "```",
    ],
)
def test_no_sql(reply):
    with pytest.raises(ParseError):
        extract_sql([reply], {})


def test_many_comments_and_no_query_are_read_in_one_way():
    """In every way to part them, this would never end."""
    with pytest.raises(ParseError):
        extract_sql(["```sql\n" + "/* the loop of a small LLM */ " * 2000 + "\n```"], {})
    sql = "/* a **/ /* b */ SELECT a FROM t"
    assert extract_sql([f"```sql\n{sql}\n```"], {}) == sql


@pytest.mark.parametrize(
    "junk",
    ["[", "(", "'", "`", "```", "links:[", "--'\n", "- ", "\n ", "SELECT '", "WITH a ", "WITH a(",
     "WITH /*", "WITH--", "SELECT /*", 'WITH "', "WITH\n", "WITH [", "/**/", "SELECT /**/`"],
)  # fmt: skip
def test_replies_that_go_on_and_on_are_read_quickly(junk):
    """In quadratic time this would take seconds."""
    reply = junk * (100_000 // len(junk))
    start = time.process_time()
    for parse in (parse_links, parse_classification, extract_sql):
        with contextlib.suppress(ParseError):
            parse([reply], {})
    assert time.process_time() - start < 1


MODULES = {
    "schema_linking": "schema_linking",
    "classification": "classification",
    "generation_easy": "generation",
    "generation_non_nested": "generation",
    "generation_nested": "generation",
    "correction": "correction",
}
FIELDS = dict.fromkeys(
    ("schema", "question", "evidence", "schema_linking", "sub_questions", "generation"), "?"
)
PARSERS = {module.name: module.parse for module in din_sql().modules}


def worked_examples(prompt: str) -> tuple[str, list[tuple[str, str]]]:
    """The schema that the examples of a prompt ask, and (question, reply) pairs."""
    _, *turns, _ = render(f"din_sql/{prompt}", FIELDS)
    schema, asked = turns[0].content.split("\n\nQuestion: ")
    questions = [asked, *(turn.content.split("Question: ")[1] for turn in turns[2::2])]
    return schema, list(zip(questions, (turn.content for turn in turns[1::2]), strict=True))


@pytest.fixture(scope="module")
def ferries():
    """The invented database, with its sample rows; every prompt shows the same one."""
    schemas = {worked_examples(prompt)[0] for prompt in MODULES}
    assert len(schemas) == 1
    (schema,) = schemas
    connection = sqlite3.connect(":memory:")
    connection.executescript(schema)
    for table, rows in re.findall(r"first rows of (\w+):\n.*\n([^*]+)\n", schema):
        for row in rows.splitlines():
            cells = [None if cell == "NULL" else cell for cell in row.split(" | ")]
            marks = ", ".join("?" * len(cells))
            connection.execute(f"INSERT INTO {table} VALUES ({marks})", cells)
    yield connection
    connection.close()


@pytest.mark.parametrize("prompting", ["chat", "few_shot"])
@pytest.mark.parametrize("prompt", MODULES)
def test_every_llm_gets_worked_examples(prompt, prompting):
    assert len(render(f"din_sql/{prompt}", FIELDS, prompting)) >= 6  # two examples
    assert len(worked_examples(prompt)[1]) >= 2


@pytest.mark.parametrize("prompt", MODULES)
def test_replies_of_worked_examples_can_be_read(prompt):
    for _, reply in worked_examples(prompt)[1]:
        parsed = PARSERS[MODULES[prompt]]([reply], {})
        assert parsed
        if prompt == "schema_linking":
            assert reply.endswith(f"Links: {parsed}")
        if prompt == "classification":
            assert reply.startswith(f"Label: {parsed.label}")
            assert (parsed.sub_questions != ()) == (parsed.label == "NESTED")
    if prompt == "classification":
        labels = [PARSERS[prompt]([reply], {}).label for _, reply in worked_examples(prompt)[1]]
        assert {*labels} == {"EASY", "NON-NESTED", "NESTED"}


@pytest.mark.parametrize("prompt", [p for p in MODULES if p.startswith(("gen", "corr"))])
def test_queries_of_worked_examples_run(prompt, ferries):
    for asked, reply in worked_examples(prompt)[1]:
        sql = extract_sql([reply], {})
        ferries.execute(sql).fetchall()
        if prompt == "generation_easy":
            assert "JOIN" not in sql
            assert sql.count("SELECT") == 1
        if prompt == "generation_non_nested":
            assert "JOIN" in sql
            assert sql.count("SELECT") == 1
        if prompt == "generation_nested":
            assert sql.count("SELECT") > 1
        if prompt == "correction" and "'norrhamn'" in asked:
            assert ferries.execute(sql).fetchall() == [(0,)]


def test_an_example_of_a_nested_query_computes_what_is_asked(ferries):
    """Retyped: Heron carried 187 passengers, then 20 and 33: one of three is above 80."""
    ferries.execute("SAVEPOINT more")
    for number, passengers in ((8, 20), (9, 33)):
        ferries.execute(
            "INSERT INTO crossing VALUES (?, 1, 'Eskvik', 'Norrhamn', '2021-03-05', ?, 31, 'S')",
            (number, passengers),
        )
    ferries.execute("UPDATE crossing SET harbour_to = 'Eskvik' WHERE crossing_id = 9")
    percentage, unrepaired = (
        ferries.execute(extract_sql([reply], {})).fetchall()
        for _, reply in worked_examples("generation_nested")[1]
    )
    assert percentage == [(pytest.approx(100 / 3),)]
    assert unrepaired == []  # Heron was repaired, Little Auk was launched later
    (late, repairs) = (
        ferries.execute(extract_sql([reply], {})).fetchall()
        for _, reply in worked_examples("generation_non_nested")[1]
    )
    assert late == [("Heron",)]
    assert repairs == [(None,)]
    ferries.execute("ROLLBACK TO more")


def test_the_correction_leaves_a_right_query_as_it_is():
    kept = [
        extract_sql([asked], {}) == extract_sql([reply], {})
        for asked, reply in worked_examples("correction")[1]
    ]
    assert sorted(kept) == [False, False, True]
