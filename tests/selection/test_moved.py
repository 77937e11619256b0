"""A project may be moved, with its runs in it: they go on where they were."""

import shutil

import pytest
from selection.test_select import App, exactly, settings

import scope_torch as st
from scope_torch.errors import InputError


@pytest.mark.slow
def test_runs_that_were_moved_together_go_on(tmp_path, monkeypatch):
    def select(app, **changes):
        return st.select(app, **settings(metric=exactly, holdout=0.2, **changes))

    def stopped(models, text):
        if len(before.calls) == 5:
            raise KeyboardInterrupt
        return before(models, text)

    old, new = tmp_path / "old", tmp_path / "elsewhere" / "new"
    (old / "runs").mkdir(parents=True)
    monkeypatch.chdir(old)
    select(App(), run_dir="june", models=["nano", "pro"])
    how = {"run_dir": "runs/july", "continue_from": "june"}
    before, app = App(), App()
    with pytest.raises(KeyboardInterrupt):
        select(stopped, **how)
    monkeypatch.chdir(tmp_path)
    shutil.copytree(old, new)
    shutil.rmtree(old)
    monkeypatch.chdir(new)
    found = select(app, **how)
    assert app.calls
    assert not set(before.calls) & set(app.calls)
    assert found.bill.total_usd == pytest.approx(before.usd() + app.usd())
    assert found.bill.num_known > 0
    shutil.move("runs/july", "july")  # alone: where its older run is now, nobody knows
    app.calls.clear()
    with pytest.raises(InputError, match=r"july continues from \['.*old/june'\], not from \['.*"):
        select(app, **how | {"run_dir": "july"})
    assert app.calls == []
