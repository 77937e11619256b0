"""An edit is noticed wherever a metric reads: behind imports in functions, packages, classes."""

import importlib
import sys

import pytest

from scope_torch.runs.identity import identities_of, identity_of

OWN = "metrics_of_user.py"
GRADING = {
    "grading.py": "LIMIT = 1\nSEEN = []\n\n\ndef score(e, o):\n    return float(e == o)\n",
    "lib/grading.py": "def score(e, o):\n    return float(e == o)\n",
    "lib/__init__.py": "",
}
METRICS = """
import abc
import dataclasses
import enum
import functools
import logging
import re
import reprlib
import threading
import types
import typing

import lib.grading
from lib import grading as known

WORDS, PATTERN = frozenset({"yes"}), re.compile("yes")


def exact(e, o):
    return float(e == o)


def of_globals(e, o, weight=1.0):
    return weight * bool(PATTERN.search(o) and o in WORDS) * exact(e, o)


def of_module(e, o):
    return known.score(e, o)


def imports_python(e, o):
    import difflib
    from collections.abc import Sized

    import numpy.linalg
    return difflib.SequenceMatcher(None, e, o).ratio() * isinstance(o, Sized) * bool(numpy.linalg)


class Judge:
    names, limits, lock = ("a", "b"), {"x": [1]}, threading.Lock()

    def __init__(self, words=()):
        self.words = set(words)

    @property
    def first(self):
        return self.names[0]

    @staticmethod
    def least(e, o):
        return min(e, o)

    def __call__(self, e, o):
        return float(self.first == self.least(e, o) or o in self.words)


@dataclasses.dataclass
class Data:
    limit: float = 0.5
    pattern: re.Pattern = re.compile("yes")

    def __call__(self, e, o):
        return float(len(o) > self.limit and bool(self.pattern.search(o)))


@dataclasses.dataclass(repr=False)
class Shown:
    @reprlib.recursive_repr()
    def __repr__(self):
        return "yes"

    def __call__(self, e, o):
        return float(o == repr(self))


class Slots(abc.ABC):
    __slots__ = ("limit",)

    def __init__(self):
        self.limit = 3

    def __call__(self, e, o):
        return float(len(o) > self.limit)


class Level(enum.Enum):
    HIGH = 3


class Pair(typing.NamedTuple):
    e: str
    o: str = ""


def of_level(e, o):
    return float(len(o) > Level.HIGH.value)


def of_pair(e, o):
    return float(Pair(e, o).e == o)


half, judge, data, slots = functools.partial(of_globals, weight=0.5), Judge(["w"]), Data(), Slots()
shown = Shown()


def imports_function(e, o):
    from grading import score
    return score(e, o)


def imports_module(e, o):
    import grading
    return grading.score(e, o)


def imports_of_package(e, o):
    from lib import grading as graded
    return graded.score(e, o)


def imports_inside(e, o):
    def graded():
        import lib.grading as here
        return here.score(e, o)
    return graded()


def of_package(e, o):
    return lib.grading.score(e, o)


def remembers(e, o):
    from grading import SEEN, score
    import grading
    SEEN.append(o)
    grading.LIMIT += 1
    return score(e, o) * (grading.LIMIT > 0)


def may_do_without(e, o):
    try:
        from grading import missing
        from no_such_module import score
    except ImportError:
        return 0.0
    return score(e, o) + missing


class Held:
    def __init__(self):
        self.asked = 0

    def score(self, e, o):
        self.asked += 1
        return float(e == o)


class Holds:
    PATTERN, WORDS = re.compile("yes"), frozenset({"yes"})
    CONFIG, HELD = types.SimpleNamespace(limit=1), Held()
    strict = functools.partial(exact, o="yes")

    class Limits:
        least = 1

    @functools.lru_cache
    def cached(self, e):
        return e.strip()

    def __call__(self, e, o):
        known = bool(self.PATTERN.search(o)) or o in self.WORDS
        return known * self.CONFIG.limit * self.HELD.score(self.cached(e), o)


holds = Holds()
"""
OF_BEFORE = {
    "exact": "exact 857f519a1b400df2",
    "of_globals": "of_globals 58cfe90030c39fed",
    "of_module": "of_module 19777565de166d26",
    "imports_python": "imports_python bdfbb7cc611822aa",
    "half": "of_globals b7b83642a27219ea",
    "judge": "Judge 25d16b3b86c6e8d0",
    "slots": "Slots 9ed9a288b43c10cb",
}
BEHIND = ["imports_function", "imports_module", "imports_of_package", "imports_inside"]
BEHIND += ["of_package", "holds", "data"]


@pytest.fixture
def loaded(tmp_path, monkeypatch):
    """Makes the modules of a user, as a new process has them after an edit."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    own = ["metrics_of_user", "grading", "lib", "lib.grading"]
    for name in own:
        monkeypatch.setitem(sys.modules, name, None)  # to be as it was after the test

    def made(file="", old="", new=""):
        for path, text in (GRADING | {OWN: METRICS}).items():
            assert path != file or old in text
            (tmp_path / path).parent.mkdir(exist_ok=True)
            (tmp_path / path).write_text(text.replace(old, new, 1) if path == file else text)
        for name in own:
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        return importlib.import_module("metrics_of_user")

    return made


@pytest.mark.parametrize("name", OF_BEFORE)
def test_ordinary_metrics_are_what_they_were(loaded, name):
    """The digests are those of the version that did not look behind."""
    assert identities_of(getattr(loaded(), name)) == [OF_BEFORE[name]]


def test_a_dataclass_is_the_same_under_another_python(loaded):
    assert identities_of(loaded().data)[0] == "Data a643d2f0cec4ef42"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("0.5\n", "dataclasses.field(default=0.5, compare=False)\n"),
        ("0.5\n", "dataclasses.field(default=0.5, repr=False)\n"),
        ("0.5\n", "dataclasses.field(default_factory=lambda: 1)\n"),
        ("    limit: float = 0.5\n", "    other: float = 0.5\n    limit: float = 0.5\n"),
        ('re.compile("yes")\n\n    def', 're.compile("no")\n\n    def'),
        ("dataclass\nclass Data", "dataclass(eq=False)\nclass Data"),
    ],
)
def test_what_a_dataclass_makes_its_methods_of_is_part_of_it(loaded, old, new):
    before = identity_of(loaded().Data)
    assert identity_of(loaded(OWN, old, new).Data) != before


def test_a_factory_of_a_field_is_code(loaded):
    """A method of a dataclass calls it, which nobody has written."""
    field = (
        "    words: list = dataclasses.field(default_factory=lambda: ['yes'])\n\n    def __call__"
    )
    first, second = (
        identity_of(loaded(OWN, '("yes")\n\n    def __call__', f'("yes")\n{text}').Data)
        for text in (field, field.replace("yes", "no"))
    )
    assert first != second


@pytest.mark.parametrize("name", ["of_level", "of_pair"])
def test_what_python_makes_of_a_class_is_no_part_of_it(loaded, name):
    """It differs between versions of Python, so that no digest is known."""
    assert len(identities_of(getattr(loaded(), name))) == 1


@pytest.mark.parametrize("name", BEHIND)
def test_runs_of_before_know_a_metric_that_now_tells_more(loaded, name):
    now, *earlier = identities_of(getattr(loaded(), name))
    assert identities_of(getattr(loaded(), name)) == [now, *earlier]
    assert earlier
    assert now not in earlier


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changed", "file", "old", "new"),
    [
        ("imports_function imports_module", "grading.py", "e == o", "e != o"),
        ("", "grading.py", "LIMIT = 1", "LIMIT = 2"),
        (" ".join(["of_module", *BEHIND[2:5]]), "lib/grading.py", "e == o", "e != o"),
        (
            "holds",
            "metrics_of_user.py",
            'PATTERN, WORDS = re.compile("yes")',
            'PATTERN, WORDS = "no"',
        ),
        ("holds", OWN, 'frozenset({"yes"})\n    CON', "frozenset()\n    CON"),
        ("holds", OWN, "SimpleNamespace(limit=1)", "SimpleNamespace(limit=2)"),
        ("holds", OWN, "1\n        return float(e == o)", "1\n        return 0.5"),
        ("holds", OWN, 'o="yes"', 'o="no"'),
        ("holds", OWN, "least = 1", "least = 2"),
        ("holds", OWN, "return e.strip()", "return e"),
        ("shown", OWN, 'return "yes"', 'return "no"'),
    ],
)
def test_an_edit_is_noticed_behind_imports_and_in_classes(loaded, changed, file, old, new):
    names = [*OF_BEFORE, *BEHIND, "shown"]
    before = {name: identity_of(getattr(loaded(), name)) for name in names}
    module = loaded(file, old, new)
    after = {name: identity_of(getattr(module, name)) for name in names}
    assert {name for name in names if before[name] != after[name]} == set(changed.split())


@pytest.mark.parametrize("name", ["remembers", "holds"])
def test_what_a_call_changes_behind_an_import_is_no_part_of_the_metric(loaded, name):
    metric = getattr(loaded(), name)
    before = identity_of(metric)
    assert [metric("yes", "yes") for _ in range(2)] == [1.0, 1.0]
    assert identity_of(metric) == before


def test_imports_that_fail_are_the_metrics_own_matter(loaded):
    assert len(identities_of(loaded().may_do_without)) == 1


def test_packages_are_not_imported_to_tell_a_metric(monkeypatch):
    def metric(e, o):
        import mailbox

        return mailbox.Error

    monkeypatch.delitem(sys.modules, "mailbox", raising=False)
    identity_of(metric)
    assert "mailbox" not in sys.modules
