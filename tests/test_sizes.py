"""How long modules, functions and the log are: a reader sees each as a whole."""

import ast
import re
import statistics

import pytest
from source_code import ROOT, imported, modules, tree_of

MOST_LINES_OF_MODULE = 400
MOST_LINES_OF_BODY = 60
MOST_MEDIAN_LINES_OF_BODY = 8
MOST_LINES_OF_ALGORITHM_1 = 280
MOST_ATTRIBUTES_OF_ALGORITHM_1 = 20
MOST_LINES_OF_LOG = 250
MOST_CHARACTERS_OF_LINE = 160
MOST_BYTES_OF_README = 8_192
MOST_BYTES_OF_PROSE = 236_000


def bodies(source: str) -> dict[str, list[ast.stmt]]:
    """The statements of every function, without its docstring; by its name and line."""
    found = {}
    for node in ast.walk(tree_of(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node) is not None else node.body
            if body:
                found[f"{node.name}, line {node.lineno}"] = body
    return found


def num_lines(body: list[ast.stmt]) -> int:
    """Lines from the first statement to the last."""
    return (body[-1].end_lineno or 0) - body[0].lineno + 1


def is_one_call(body: list[ast.stmt]) -> bool:
    """Whether the function is one call, which is as long as its list of arguments."""
    (first, *others) = body
    return not others and isinstance(getattr(first, "value", None), ast.Call)


def test_no_module_is_long():
    lengths = {name: len(path.read_text().splitlines()) for name, path in modules().items()}
    assert {n: length for n, length in lengths.items() if length > MOST_LINES_OF_MODULE} == {}


@pytest.mark.slow
def test_no_function_is_long():
    found = {
        f"{name}.{function}": num_lines(body)
        for name, path in modules().items()
        for function, body in bodies(path.read_text()).items()
        if not is_one_call(body)
    }
    assert {n: length for n, length in found.items() if length > MOST_LINES_OF_BODY} == {}


@pytest.mark.slow
def test_most_functions_are_short():
    lengths = [
        num_lines(body) for path in modules().values() for body in bodies(path.read_text()).values()
    ]
    assert len(lengths) > 1000
    assert statistics.median(lengths) <= MOST_MEDIAN_LINES_OF_BODY


def test_algorithm_1_reads_as_in_the_paper():
    """What the paper does not have is a rule beside it."""
    source = modules()["scope_torch.search.scope"].read_text()
    assert len(source.splitlines()) <= MOST_LINES_OF_ALGORITHM_1
    (scope,) = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
    stored = {
        node.attr
        for node in ast.walk(scope)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    }
    assert len(stored) <= MOST_ATTRIBUTES_OF_ALGORITHM_1
    own = {name for name in imported(source) if name.startswith("scope_torch.")}
    assert {name.removeprefix("scope_torch.") for name in own} <= {
        "bounds.assumptions",
        "bounds.base",
        "errors",
        "observation",
        "problem",
        "search.belief",
        "search.calibrate",
        "search.front",
        "search.optimizer",
        "search.parts",
        "search.rules",
        "search.stopping",
        "search.turn",
        "space",
    }


def test_the_log_is_short():
    lines = (ROOT / "LOG.md").read_text().splitlines()
    assert len(lines) <= MOST_LINES_OF_LOG
    assert [line for line in lines if len(line) > MOST_CHARACTERS_OF_LINE] == []


def test_the_readme_is_read_on_a_phone():
    for name in ("README.md", "CONTRIBUTING.md"):
        assert (ROOT / name).stat().st_size <= MOST_BYTES_OF_README


def test_what_there_is_to_read_is_short():
    """Docs and logs: a page that grows says something twice, or takes the place of another.

    Tables that a program writes are evidence, and no prose.
    """
    names = ("README.md", "CHANGELOG.md", "LOG.md")
    pages = [*(ROOT / name for name in names), *(ROOT / "docs").rglob("*.md")]
    assert len(pages) > 50
    written = [re.sub(r"<!-- begin: .*?<!-- end -->", "", p.read_text(), flags=re.S) for p in pages]
    assert sum(len(text.encode()) for text in written) <= MOST_BYTES_OF_PROSE


def test_no_comment_sends_the_reader_to_the_log():
    paths = [*modules().values(), *ROOT.glob("conf/**/*.yaml")]
    assert [path for path in paths if "LOG.md" in path.read_text()] == []


@pytest.mark.parametrize(
    ("source", "lines", "one_call"),
    [
        ('def f():\n    """Doc."""\n    a = 1\n\n    return a', 3, False),
        ("def f():\n    return g(\n        1,\n        2,\n    )", 4, True),
        ("class A:\n    async def f(self):\n        x = g(1)\n        return x", 2, False),
    ],
)
def test_how_lines_are_counted(source, lines, one_call):
    (body,) = bodies(source).values()
    assert (num_lines(body), is_one_call(body)) == (lines, one_call)
