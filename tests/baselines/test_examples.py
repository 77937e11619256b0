"""The examples in the docstrings of the competitors, done."""

import doctest
import importlib
import pkgutil

import pytest

import baselines

MODULES = [module.name for module in pkgutil.iter_modules(baselines.__path__)]
WITHOUT = {"abacus_module", "chat_client"}


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    if name == "optuna_gp":
        pytest.importorskip("optuna")
    done = doctest.testmod(importlib.import_module(f"baselines.{name}"))
    assert done.failed == 0
    assert (done.attempted == 0) == (name in WITHOUT)
