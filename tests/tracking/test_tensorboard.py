"""Real event files, read back."""

from __future__ import annotations

import io
import json
import math
import re

import pytest

from scope_torch.baselines.llmselector import LLMSelector
from scope_torch.errors import InputError
from scope_torch.methods import make_scope, make_scope_joint
from scope_torch.runs.runner import run
from scope_torch.tasks.constrained import with_constraints
from scope_torch.tasks.synthetic import synthetic_task
from scope_torch.tracking.curves import CurvePlot
from scope_torch.tracking.progress import ProgressBar
from scope_torch.tracking.tensorboard import TensorBoardTracker

pytestmark = pytest.mark.filterwarnings("ignore")


def search(run_dir, budget=0.2):
    problem, evaluator, _ = synthetic_task(num_queries=8)
    optimizer = make_scope(problem, base="small", seed=0)
    callbacks = [CurvePlot(), TensorBoardTracker(run_dir)]
    return run(problem, optimizer, evaluator, budget, run_dir=run_dir, callbacks=callbacks)


def events(run_dir):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = accumulator.EventAccumulator(str(run_dir / "tensorboard"))
    found.Reload()
    return found


@pytest.mark.slow
def test_scalars_text_and_figure_are_in_the_event_file(tmp_path):
    pytest.importorskip("tensorboard")
    result = search(tmp_path)
    found = events(tmp_path)
    expected = [(round(r.spend_usd * 1e6), r.u_out_usd) for r in result.trace if r.u_out_usd]
    scalars = [(event.step, event.value) for event in found.Scalars("u_out_usd")]
    assert [step for step, _ in scalars] == [step for step, _ in expected]
    assert [v for _, v in scalars] == pytest.approx([v for _, v in expected])
    pruned = [row.lower_g for row in result.trace if row.lower_g is not None]
    assert [e.value for e in found.Scalars("lower_g")] == pytest.approx(pruned, rel=1e-5)
    best = result.summary()["true_cost_usd"]
    assert min(e.value for e in found.Scalars("c_bf_usd")) <= best * (1 + 1e-6)
    text = found.Tensors("result/text_summary")[0].tensor_proto.string_val[0].decode()
    assert json.loads(text)["theta_out"] == result.choice
    assert found.Images("curves")[0].width > 500


@pytest.mark.slow
def test_a_search_told_again_does_not_double_its_curves(tmp_path):
    pytest.importorskip("tensorboard")
    search(tmp_path, budget=0.1)
    longer = search(tmp_path)
    steps = [event.step for event in events(tmp_path).Scalars("u_out_usd")]
    assert len(steps) == sum(row.u_out_usd is not None for row in longer.trace)


def test_without_tensorboard_the_extra_is_named(tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    monkeypatch.delattr("torch.utils.tensorboard", raising=False)
    with pytest.raises(InputError, match=r"pip install 'scope-torch\[tensorboard\]'"):
        TensorBoardTracker(tmp_path)


def test_a_link_in_the_place_of_the_folder_is_refused(tmp_path):
    """Old event files where it leads would be removed."""
    (tmp_path / "yours").mkdir()
    (tmp_path / "yours" / "events.out.tfevents.1").write_text("mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "tensorboard").symlink_to(tmp_path / "yours")
    with pytest.raises(InputError, match="tensorboard: it is a link"):
        TensorBoardTracker(tmp_path / "run")
    assert (tmp_path / "yours" / "events.out.tfevents.1").read_text() == "mine"


def test_where_quality_is_the_objective_nothing_is_called_usd(tmp_path):
    pytest.importorskip("tensorboard")
    task = synthetic_task(num_queries=8)
    cap = 4 * task.problem.reference_cost_usd
    bound = [f"cost_usd <= 0.3 * reference cap {cap:.6g}"]
    problem, evaluator, _ = with_constraints(task, bound, "quality")
    optimizer = make_scope_joint(problem, base="nano", seed=0)
    result = run(problem, optimizer, evaluator, 0.3, callbacks=[TensorBoardTracker(tmp_path)])
    found = events(tmp_path)
    names = set(found.Tags()["scalars"])
    assert {"u_out_loss", "regret", "lower_loss", "loss_bf"} <= names
    assert [name for name in names if name.endswith("_usd")] == []
    assert found.Scalars("regret")[-1].value == pytest.approx(result.summary()["regret"])


@pytest.mark.slow
def test_the_bar_says_what_the_gap_is(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    task = synthetic_task(num_queries=8)
    cap = 4 * task.problem.reference_cost_usd
    bound = [f"cost_usd <= 0.3 * reference cap {cap:.6g}"]
    for (problem, evaluator, _), unit in (
        (task, "USD/query"),
        (with_constraints(task, bound, "quality"), "quality"),
    ):
        monkeypatch.setattr("sys.stderr", shown := Terminal())
        optimizer = make_scope_joint(problem, base="nano", seed=0)
        run(problem, optimizer, evaluator, 0.3, callbacks=[ProgressBar()])
        assert re.search(rf"gap [0-9.e-]+ {unit}", shown.getvalue())


def test_a_cost_that_nobody_knows_yet_is_no_point_of_a_curve(tmp_path):
    """LLMSelector begins anywhere, and nothing feasible may be known for long."""
    pytest.importorskip("tensorboard")
    problem, evaluator, _ = synthetic_task(num_queries=8)
    optimizer = LLMSelector(problem, seed=6)
    tracker = TensorBoardTracker(tmp_path)
    result = run(problem, optimizer, evaluator, 0.6, run_dir=tmp_path, callbacks=[tracker])
    costs = [cost for _, cost, _ in result.curve.points(0.6)]
    assert not all(map(math.isfinite, costs))
    told = [event.value for event in events(tmp_path).Scalars("c_bf_usd")]
    assert told == pytest.approx([cost for cost in costs if math.isfinite(cost)])
