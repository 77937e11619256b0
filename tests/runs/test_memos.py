"""What a metric remembers, in a container that it fills itself, is no part of what it is."""

import collections
import functools
import types
from html.parser import HTMLParser

import pytest
from runs.test_content import loaded

from scope_torch.runs.identity import identities_of, identity_of

MEMOS = """
import collections
import functools
import types

import numpy as np

memo, asked, seen, counts = {}, [], set(), np.zeros(3)
calls, latest = {"n": 0}, collections.deque()
box, number = types.SimpleNamespace(sizes={}), 0


def by_key(expected, output):
    if (expected, output) not in memo:
        memo[expected, output] = float(expected == output)
    return memo[expected, output]


def by_methods(expected, output):
    asked.append(output)
    seen.add(expected)
    latest.appendleft(output)
    calls["n"] += 1
    counts[0] += 1
    box.sizes.update({output: 1})
    return float(expected == output)


def by_its_helper(expected, output):  # reads what only the helper fills, and sets
    return memo.get((expected, output), 0.0) or count() or by_key(expected, output) or number


def count():
    global number
    number += 1


def by_default(expected, output, known={}):
    return known.setdefault((expected, output), {}).setdefault("grade", float(expected == output))


def by_closure():
    kept, found = {}, []

    def grade(expected, output):
        here = kept
        here.setdefault(output, []).append(expected)
        kept.get(output).append(0)
        found.extend([output])
        return float(expected == output)

    return grade


class Judge:
    shared, every = {}, []

    def __init__(self, words=()):
        self.words, self.memo, self._lazy, self.inner = [], {}, None, {"a": {}}
        self.words.extend(words)

    @property
    def lazy(self):
        if self._lazy is None:
            self._lazy = {"known": 1}
        return self._lazy

    @classmethod
    def keep(cls, output):
        cls.every.append(output)

    def __call__(self, expected, output):
        cache = self.memo
        cache[expected, output] = self.lazy
        self.inner["a"][output] = 1
        type(self).shared[output] = 1
        self.keep(output)
        return float(expected == output)


def given(expected, output, store, more=None):
    store[output] = expected
    more.append(output)
    return 1.0


in_closure, judge, method = by_closure(), Judge(["yes"]), Judge(["no"]).__call__
in_partial = functools.partial(given, store={}, more=[])
of_itself = functools.partial(by_methods)
"""
WITH_MEMOS = ["by_key", "by_methods", "by_its_helper", "by_default", "in_closure", "judge"]
WITH_MEMOS += ["method", "in_partial", "of_itself"]


@pytest.mark.parametrize("name", WITH_MEMOS)
def test_what_a_metric_remembers_is_no_part_of_it(tmp_path, name):
    function = getattr(loaded(tmp_path, MEMOS), name)
    before = identity_of(function)
    for output in ("a", "b"):
        function("a", output)
    assert identity_of(function) == before
    assert identities_of(function)[-1] != before  # as earlier versions told it


def test_what_a_metric_does_not_change_is_a_part_of_it(tmp_path):
    before = identity_of(loaded(tmp_path, MEMOS).judge)
    assert identity_of(loaded(tmp_path, MEMOS.replace('["yes"]', '["yes", "no"]')).judge) != before
    before = identity_of(loaded(tmp_path, MEMOS).by_methods)
    assert identity_of(loaded(tmp_path, MEMOS.replace('{"n": 0}', '{"n": 7}')).by_methods) == before


@pytest.mark.parametrize("name", WITH_MEMOS)
def test_a_new_process_says_what_an_earlier_version_said(tmp_path, name):
    """So a directory of it goes on; also where a container was not empty at the beginning."""
    earlier = {
        "by_key": "by_key 2e1b4d57d668ccd3",
        "by_methods": "by_methods e0f3e842eec208ce",
        "by_its_helper": "by_its_helper b55406f9bef2dd9c",
        "by_default": "by_default 869a6e6d6e40bfcc",
        "in_closure": "by_closure.<locals>.grade 9197d3dacbdbbefc",
        "judge": "Judge 5caa7a9e41950341",
        "method": "Judge.__call__ cdc4f7168ffcbf85",
        "in_partial": "given 4545136793010bf1",
        "of_itself": "by_methods d5f886a1832f4786",
    }
    module = loaded(tmp_path, MEMOS)
    assert earlier[name] in identities_of(getattr(module, name))


class Tolerant:
    limit = 1.0

    def __init__(self):
        self.tol, self.words, self.last, self.helper = 0.1, [], None, None

    def configure(self, tol):
        self.tol = tol

    def allow(self, word):
        self.words.append(word)

    @classmethod
    def bound(cls, limit):
        cls.limit = limit

    def __call__(self, expected, output):
        self._note(output)
        return min(float(abs(expected - output) < self.tol), self.limit)

    def _note(self, output):
        self.last = output


@pytest.mark.parametrize("change", ["configure", "allow", "bound"])
@pytest.mark.parametrize("way", ["object", "method", "lambda", "held", "partial"])
def test_what_no_call_changes_is_part_of_it(monkeypatch, change, way):
    """A tolerance that was set between two runs: grades of the first one are not of the second."""
    monkeypatch.setattr(Tolerant, "limit", 1.0)
    inner, outer = Tolerant(), Tolerant()
    outer.helper = inner
    metric = {
        "object": inner,
        "method": inner.__call__,
        "lambda": lambda expected, output: inner(expected, output),
        "held": outer,
        "partial": functools.partial(inner),
    }[way]
    before = identity_of(metric)
    metric(1.0, 1.05)
    inner._note(3.0)
    assert identity_of(metric) == before
    getattr(inner, change)(0.2)
    assert before not in identities_of(metric)


class OfPackage(HTMLParser):
    """Its `feed` calls the methods below, and its `reset` sets attributes."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def handle_data(self, data):
        self.seen.append(data)

    def __call__(self, expected, output):
        self.feed(output)
        return float(expected in self.seen)


class CalledBack:
    """A package holds a method of the object that holds it."""

    def __init__(self):
        self.client, self.hooks = types.SimpleNamespace(n=1), collections.deque([self.on])
        self.client.hook = self.on

    def on(self, output):
        self.last = output

    def __call__(self, expected, output):
        self.hooks[0](output)
        return float(expected == output)


class InSteps:
    def clean(self, text):
        self.count = len(text)
        return text

    def lower(self, text):
        self.least = text.lower()
        return self.least

    def __call__(self, expected, output):
        for step in ("clean", "lower"):
            output = getattr(self, step)(output)
        return float(expected == output)


class Begins:
    def __init__(self, limit):
        self.limit = limit

    def __getstate__(self):
        return {"limit": self.limit, "key": lambda text: text}

    def __call__(self, expected, output):
        class Parser(HTMLParser):
            def __init__(self):
                super().__init__()

        return float(len(output) > self.limit)


@pytest.mark.parametrize("kind", [OfPackage, CalledBack, InSteps, lambda: Begins(3)])
def test_what_code_runs_by_other_ways_changes_it_too(kind):
    metric = kind()
    before = identity_of(metric)
    metric("A b", "A b")
    assert identity_of(metric) == before


def test_what_makes_an_object_is_no_part_of_a_call():
    assert identity_of(Begins(1)) != identity_of(Begins(9))


def test_runs_of_before_know_their_metric():
    """They left out what any method sets."""
    one, two = Tolerant(), Tolerant()
    two.configure(0.2)
    (now, *earlier), (other, *others) = map(identities_of, (one, two))
    assert now != other
    assert earlier == others != []
