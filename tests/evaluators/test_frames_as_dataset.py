"""A frame as `dataset`: its rows are the queries, never the names of its columns."""

import json
from typing import Any

import polars as pl
import pytest

import scope_torch as st
from scope_torch.cli.check import _dataset
from scope_torch.errors import InputError
from scope_torch.evaluators.application import Item, items_of
from scope_torch.observation import Request

ROWS = {"input": ["a", "b", "c"], "expected": ["A", "B", "C"]}
PAIRS = [Item(0, "a", "A"), Item(1, "b", "B"), Item(2, "c", "C")]


class Column(list):
    """A column of pyarrow: its elements are no values of Python."""

    def __iter__(self):
        return (object() for _ in range(len(self)))

    def to_pylist(self):
        return [self[i] for i in range(len(self))]


class Table:
    """A table of pyarrow, or a data set of Hugging Face: a frame with `column_names`."""

    def __init__(self, rows):
        self.column_names = list(rows)
        self.columns = list(rows.values())
        self._rows = rows

    def __getitem__(self, name):
        return Column(self._rows[name])


def of_pandas(rows):
    return pytest.importorskip("pandas").DataFrame(rows)


FRAMES = {
    "polars": pl.DataFrame,
    "polars, lazy": pl.LazyFrame,
    "pyarrow": Table,
    "pandas": of_pandas,
}


@pytest.mark.parametrize("kind", FRAMES)
def test_the_rows_of_a_frame_are_the_elements(kind):
    make = FRAMES[kind]
    assert items_of(make(ROWS), with_expected=True) == PAIRS
    assert items_of(make({"n": [1, 2, 3], **dict(reversed(ROWS.items()))}), True) == PAIRS
    assert items_of(make({"question": ROWS["input"], "answer": ROWS["expected"]}), True) == PAIRS
    for inputs in ({"question": ["a", "b"]}, {"n": [1, 2], "input": ["a", "b"]}):
        assert items_of(make(inputs), with_expected=False) == [Item(0, "a"), Item(1, "b")]


@pytest.mark.parametrize(
    ("rows", "with_expected", "words"),
    [
        ({"a": [1], "b": [2], "c": [3]}, True, "columns ['a', 'b', 'c']; rename those to use to "
         "input and expected, such as {'a': 'input', 'b': 'expected'}"),
        ({"a": [1], "b": [2]}, False, "rename those to use to input"),
        ({"a": [1]}, True, "only the columns ['a']: input and expected are missing"),
        ({"input": [1]}, True, "only the columns ['input']: expected is missing"),
        ({}, True, "dataset is empty"),
        ({"input": ["a", None], "expected": ["A", "B"]}, True, "dataset['input'] has no value in "
         "row 1; leave it out"),
        ({"input": ["a", "b"], "expected": [1.0, float("nan")]}, True, "dataset['expected'] has"),
        ({"input": [], "expected": []}, True, "dataset is empty"),
        ({"n": [1], "expected": ["A"], "q": ["a"]}, True, "such as {'n': 'input'}"),
    ],
)  # fmt: skip
def test_frames_that_cannot_be_used(rows, with_expected, words):
    with pytest.raises(InputError) as caught:
        items_of(pl.DataFrame(rows), with_expected)
    assert words in str(caught.value)


@pytest.mark.parametrize("names", [("expected", "question"), ("answer", "input")])
def test_a_column_with_a_name_is_not_taken_for_the_other(names):
    rows = dict(zip(names, (ROWS["expected"], ROWS["input"]), strict=True))
    assert items_of(pl.DataFrame(rows), with_expected=True) == PAIRS


@pytest.mark.parametrize("names", [["input", "input", "expected"], ["q", "q"]])
def test_two_columns_of_one_name_are_refused(names):
    """Of both pandas makes a frame, whose elements are its columns."""

    class Frame(list):
        columns = names

        def __getitem__(self, name):
            return Frame([name, name]) if names.count(name) > 1 else Column(["A", "B"])

    with pytest.raises(InputError, match=r"has two columns '(input|q)'"):
        items_of(Frame(), True)


def test_a_stream_has_no_columns_to_read():
    class Stream:
        column_names = ("input", "expected")

        def __iter__(self):
            yield {"input": "a", "expected": "A"}

    with pytest.raises(InputError, match="without streaming"):
        items_of(Stream(), True)  # type: ignore[arg-type]


def test_select_takes_a_frame():
    result = st.select(
        lambda models, text: (text.upper(), {"mini": 0.001, "pro": 0.01}[models["model"]]),
        models=["mini", "pro"], reference="pro", dataset=pl.DataFrame(ROWS), budget_usd=1,
        metric=st.metrics.exact_match, max_quality_loss=0.1,
    )  # fmt: skip
    assert result.problem.num_queries == 3
    assert result.problem.reference_quality == 1.0


def test_a_list_in_a_cell_is_a_list():
    rows = {"input": [["a"], ["b", "c"]], "expected": [["A"], ["B"]]}
    assert items_of(pl.DataFrame(rows), True) == [Item(0, ["a"], ["A"]), Item(1, ["b", "c"], ["B"])]


def test_json_lines_keep_their_values(tmp_path):
    """A frame has one type for a column, by its first rows."""
    path = tmp_path / "questions.jsonl"
    rows: list[dict[str, Any]] = [{"input": {"q": "x"}, "expected": 1} for _ in range(150)]
    rows += [{"input": {"q": "y", "ctx": "z"}, "expected": "1"}, {"input": ["a"], "expected": 2.5}]
    path.write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8-sig")
    found = items_of(_dataset(str(path)), True)
    assert [(item.input, item.expected) for item in found] == [
        (row["input"], row["expected"]) for row in rows
    ]
    path.write_text('{"q": "x"}\n{"q": "y", "ctx": "z"}\n')
    with pytest.raises(InputError, match="'ctx'"):
        items_of(_dataset(str(path)), False)
    for content in ("[1]\n", "{\n"):
        path.write_text(content)
        with pytest.raises(InputError, match=r"cannot read .*questions.jsonl"):
            _dataset(str(path))


class Series(list):
    """A series of pandas, shuffled: it is asked by labels, and iterated by position."""

    iloc = None

    def __init__(self, values, labels):
        super().__init__(values)
        self._by_label = dict(zip(labels, values, strict=True))

    def __getitem__(self, label):
        return self._by_label[label]


class Frame(dict):
    """A frame of pandas, as far as a function is asked with it."""

    iloc, columns = None, ["input"]


PROBLEM = st.SelectionProblem(
    "queries", ("add",), (("nano", "pro"),), 3, (1,), 1.0, 0.01, epsilon=0.1
)


def test_queries_of_a_function_are_asked_by_position_whatever_their_labels():
    asked = []
    queries = Series(["a", "b", "c"], [2, 0, 1])
    evaluator = st.FunctionEvaluator(PROBLEM, lambda _, q: asked.append(q) or (1.0, 0.01), queries)
    list(evaluator.evaluate([Request((0,), number) for number in range(3)]))
    assert asked == ["a", "b", "c"]  # as they are told apart
    plain = st.FunctionEvaluator(PROBLEM, evaluator.system, ["a", "b", "c"])
    assert evaluator.query_keys() == plain.query_keys()
    assert evaluator.fingerprint() == plain.fingerprint()


@pytest.mark.parametrize("kind", [Frame, dict, set])
def test_queries_without_positions_are_refused(kind):
    queries = kind({number: f"q{number}" for number in range(3)})
    with pytest.raises(InputError, match=f"queries is a {kind.__name__}, .* give a list"):
        st.FunctionEvaluator(PROBLEM, lambda *_: (1.0, 0.01), queries)
