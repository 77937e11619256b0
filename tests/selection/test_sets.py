"""A set has another order in every process; what is made of it has one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

_SELECT = """
import scope_torch as st
def app(models, text):
    return {"output": text.upper(), "cost_usd": {"nano": 1.0, "mini": 2.0, "pro": 4.0}[models["a"]],
            "outcomes": {"x": 1.0, "y": 1.0, "z": 1.0}}
setup = st.Selection(
    app, models={"a": {"nano", "mini", "pro"}}, reference={"a": "pro"}, budget_usd=900,
    dataset={(text, text.upper()) for text in ("one", "two", "three", "four")},
    metric=st.metrics.exact_match, min_quality=0.5, continue_from={"may", "june", "july"},
    constraints={"x <= 2 cap 10", "y <= 2 cap 10", "z <= 2 cap 10"},
)._setup
items = [item.input for item in setup.searched]
earlier = [path.name for path in setup.earlier]
print(setup.problem.llms, list(map(str, setup.problem.constraints)), earlier, items)
"""


@pytest.mark.slow
@pytest.mark.parametrize("seed", ["1", "2"])
def test_sets_are_told_in_one_order(tmp_path, seed):
    root = Path(__file__).parents[2]
    where = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(root)}
    found = subprocess.run(
        [sys.executable, "-c", _SELECT], env=where, cwd=tmp_path, capture_output=True, text=True
    )
    assert found.returncode == 0, found.stderr
    assert "(('mini', 'nano', 'pro'),)" in found.stdout
    assert found.stdout.index("x <=") < found.stdout.index("y <=") < found.stdout.index("z <=")
    assert "['july', 'june', 'may'] ['four', 'one', 'three', 'two']" in found.stdout
