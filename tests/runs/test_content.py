"""The content of values and the identity of functions, as text that another process compares."""

import collections
import dataclasses
import datetime
import decimal
import enum
import functools
import importlib.util
import io
import json
import linecache
import re
import sys
import threading
import uuid
from pathlib import Path

import numpy as np
import pytest
import torch
from reliability.test_forks import python

from scope_torch import metrics
from scope_torch.errors import InputError
from scope_torch.runs.content import Unknowable
from scope_torch.runs.evaluator import keys_of
from scope_torch.runs.identity import identity_of, text_of


@dataclasses.dataclass
class Question:
    text: str
    number: int = 1


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Plain:
    def __init__(self, x):
        self.x = x


class Slots:
    __slots__ = ("x",)

    def __init__(self, x):
        self.x = x


def image(colour):
    pil = pytest.importorskip("PIL.Image")
    return pil.new("RGB", (4, 4), colour)


def model(number):
    pydantic = pytest.importorskip("pydantic")

    class Model(pydantic.BaseModel):
        number: int

    return Model(number=number)


@pytest.mark.parametrize(
    "made",
    [
        lambda n: Question("six", n),
        lambda n: {"deep": [Question("six", n)]},
        lambda n: bytes([n]),
        lambda n: {n, "x", 7},
        lambda n: {(n, 2): 3, None: 4},
        lambda n: Colour(n),
        lambda n: datetime.datetime(2026, 1, n),
        lambda n: decimal.Decimal(n),
        lambda n: uuid.UUID(int=n),
        lambda n: re.compile("a" * n),
        lambda n: range(n),
        lambda n: collections.deque([n]),
        lambda n: np.array([1.0, n]),
        lambda n: np.array([{"n": n}], dtype=object),
        lambda n: np.int64(n),
        lambda n: torch.tensor([1.0, n], dtype=torch.bfloat16),
        lambda n: Plain(Question("six", n)),
        lambda n: Slots(n),
        lambda n: image((n, 0, 0)),
        model,
        lambda n: lambda output: output == n,
    ],
)
def test_equal_values_have_equal_texts_and_others_have_not(made):
    assert text_of([made(1)]) == text_of([made(1)]) != text_of([made(2)])
    json.loads(text_of([made(1)]))


def test_plain_data_is_its_json():
    value = {"b": [1, (2.5, None)], "a": "text"}
    assert text_of(value) == json.dumps(value, sort_keys=True)
    assert text_of([1, b"x"]) != text_of([1, "x"])
    assert text_of({(1, 2)}) == text_of({(1, 2)})


def test_a_path_is_its_name_and_what_the_file_holds(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    for folder in "ab":
        (tmp_path / folder / "scan.png").write_bytes(b"same")
    one, moved = (text_of([tmp_path / folder / "scan.png"]) for folder in "ab")
    assert one == moved
    (tmp_path / "a" / "scan.png").write_bytes(b"other")
    assert text_of([tmp_path / "a" / "scan.png"]) != one
    folder = text_of([tmp_path / "a"])
    (tmp_path / "a" / "scan.png").write_bytes(b"third")
    assert text_of([tmp_path / "a"]) != folder
    assert text_of([Path("no/such/file")]) != text_of([Path("no/such/other")])


def cycle():
    held = Plain(1)
    held.x = held
    return held


UNKNOWN = [
    object(),
    Plain(object()),
    threading.Lock(),
    io.TextIOWrapper(io.BytesIO()),
    (i for i in ()),
    np.array([object()], dtype=object),
    cycle(),
]


@pytest.mark.parametrize("unknown", UNKNOWN)
def test_what_has_no_content_is_not_guessed(unknown):
    with pytest.raises(Unknowable):
        text_of([unknown])
    with pytest.raises(InputError, match=r"query 1, .*give plain data") as told:
        keys_of(["known", unknown])
    assert "\n" not in str(told.value)


@pytest.mark.slow
def test_another_process_tells_the_same():
    code = (
        "import dataclasses, pathlib, numpy\n"
        "from scope_torch import metrics\n"
        "from scope_torch.runs.identity import identity_of, text_of\n"
        "@dataclasses.dataclass\n"
        "class Q:\n    text: str\n    tags: frozenset\n"
        "def metric(e, o):\n    return float(e in {'a', 'b', 'c'} and o.x != Q)\n"
        "print(text_of([Q('a', frozenset('xyz')), numpy.ones(3)]), identity_of(metric))\n"
        "print(identity_of(metrics.number()), identity_of(lambda e, o: o in {'x', 'y', e}))\n"
    )
    assert python(code, PYTHONHASHSEED="1") == python(code, PYTHONHASHSEED="2")


def loaded(tmp_path, source, name="my_metrics"):
    """A module as it is after an edit, in the place of the one before."""
    path = tmp_path / f"{name}.py"
    path.write_text(source)
    # Python takes its bytecode for that of a file of the same second and size.
    Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


METRICS = '''
import functools

LIMIT = 3
CALLS = 0


def helper(text):
    return text.strip()


def metric(expected, output, weight=1.0):
    """Grades."""
    global CALLS
    CALLS += 1  # a counter is no part of it
    return weight * (helper(expected) == helper(output)) if len(output) > LIMIT else 0.0


def made(threshold):
    return lambda expected, output: float(len(output) > threshold)


class Judge:
    prompt = "Is it right?"

    def __init__(self, strict=True):
        self.strict, self.asked = strict, 0

    def __call__(self, expected, output):
        self.asked += 1
        return self.grade(expected, output)

    def grade(self, expected, output):
        return float(expected == output)


@functools.lru_cache
def cached(expected, output):
    return float(expected == output)


of_table = {"exact": lambda expected, output: float(expected == output)}


def by_table(expected, output):
    return of_table["exact"](expected, output)


half = functools.partial(metric, weight=0.5)
closure = made(5)
judge = Judge()
method = judge.grade
'''
NAMES = ["metric", "closure", "judge", "method", "cached", "by_table", "half"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("edit", "changed"),
    [
        (('"""Grades."""', '"""Grades well.\n\n    Very."""'), []),
        (("  # a counter is no part of it", ""), []),
        (("import functools\n", "import functools\n\n\n# moved down\n"), []),
        (("weight * (helper", "weight  *  (helper"), []),
        (("CALLS = 0", "CALLS = 7"), []),
        (
            ("self.strict, self.asked = strict, 0", "self.strict, self.asked = strict, 9"),
            ["judge", "method"],
        ),
        (("== helper(output)", "!= helper(output)"), ["metric", "half"]),
        (("text.strip()", "text.strip().lower()"), ["metric", "half"]),
        (("LIMIT = 3", "LIMIT = 4"), ["metric", "half"]),
        (("weight=1.0", "weight=0.9"), ["metric", "half"]),
        (("weight=0.5", "weight=0.4"), ["half"]),
        (("made(5)", "made(6)"), ["closure"]),
        (("len(output) > threshold", "len(output) >= threshold"), ["closure"]),
        (("judge = Judge()", "judge = Judge(False)"), ["judge", "method"]),
        (("Is it right?", "Is it true?"), ["judge", "method"]),
        (
            (
                '{"exact": lambda expected, output: float(expected == output)',
                '{"exact": lambda expected, output: float(expected != output)',
            ),
            ["by_table"],
        ),
        (
            (
                "def cached(expected, output):\n    return float(expected ==",
                "def cached(expected, output):\n    return float(expected !=",
            ),
            ["cached"],
        ),
    ],
)
def test_a_metric_is_what_its_code_reads(tmp_path, edit, changed):
    before = {name: identity_of(getattr(loaded(tmp_path, METRICS), name)) for name in NAMES}
    assert METRICS.count(edit[0]) >= 1
    module = loaded(tmp_path, METRICS.replace(edit[0], edit[1], 1))
    after = {name: identity_of(getattr(module, name)) for name in NAMES}
    told = [name for name in NAMES if before[name] != after[name]]
    assert sorted(told) == sorted(changed)


@pytest.mark.slow
def test_a_metric_stays_itself_while_it_is_used(tmp_path):
    module = loaded(tmp_path, METRICS)
    before = {name: identity_of(getattr(module, name)) for name in NAMES}
    for name in NAMES:
        for _ in range(200):  # the interpreter specialises what is called often
            getattr(module, name)("a", "b")
    assert {name: identity_of(getattr(module, name)) for name in NAMES} == before


def test_a_file_that_was_edited_is_not_what_runs(tmp_path):
    """The source on disk is of another function already; then the bytecode tells."""
    module = loaded(tmp_path, METRICS)
    before = identity_of(module.metric)
    (tmp_path / "my_metrics.py").write_text(METRICS.replace("== helper(out", "!= helper(out"))
    assert identity_of(module.metric) == before  # as it was when it was first read
    linecache.clearcache()
    running = identity_of(module.metric)
    edited = identity_of(loaded(tmp_path, (tmp_path / "my_metrics.py").read_text()).metric)
    assert len({before, running, edited}) == 3


def test_lambdas_on_one_line_are_told_apart():
    one, two = (lambda e, o: e == o), (lambda e, o: e != o)
    assert identity_of(one) != identity_of(two)
    assert identity_of(one).startswith("test_lambdas_on_one_line_are_told_apart.<locals>.<lambda> ")


def test_names_and_versions():
    assert identity_of(metrics.exact_match).startswith("exact_match ")
    assert identity_of(metrics.number()) != identity_of(metrics.number(0.5))
    assert identity_of(functools.partial(max, key=len)).startswith("max ")
    assert identity_of(Question("a").__eq__, version="7") == "Question.__eq__ version 7"
    assert identity_of(Plain) != identity_of(Slots)


def test_an_object_may_leave_out_its_caches():
    class Judge:
        def __init__(self, known):
            self.known, self.limit = known, 3

        def __call__(self, expected, output):
            return 1.0

        def __getstate__(self):
            return {"limit": self.limit}

    one, two = Judge({}), Judge({"a": 1.0})
    assert identity_of(one) == identity_of(two)
    two.limit = 4
    assert identity_of(one) != identity_of(two)
