"""The examples in docstrings run and give the results they show."""

import doctest
import importlib
import inspect

import pytest
from source_code import modules

import scope_torch

NAMES = [name for name in modules() if name.startswith("scope_torch")]
WITH_EXAMPLES = [name for name in NAMES if ">>>" in modules()[name].read_text()]


def examples_of(module):
    tests = doctest.DocTestFinder().find(module, module.__name__)
    return [test for test in tests if test.examples]


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples_give_what_they_show(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runner, shown = doctest.DocTestRunner(), []
    for test in examples_of(importlib.import_module(name)):
        runner.run(test, out=shown.append)
    assert runner.tries > 0
    assert not runner.failures, "".join(shown)


def test_every_module_can_be_imported():
    assert len(NAMES) > 250
    for name in NAMES:
        importlib.import_module(name)


def test_every_public_class_and_function_has_an_example():
    public = {name: getattr(scope_torch, name) for name in scope_torch.__all__}
    lacking = {
        name
        for name, value in public.items()
        if inspect.isclass(value) or inspect.isfunction(value)
        if not doctest.DocTestFinder(recurse=False).find(value, name)[0].examples
    }
    assert lacking == set()
