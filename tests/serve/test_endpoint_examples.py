"""The applications of the how-to, as they stand there: each in a process, each with its bill."""

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec

import pytest
from integration.doc_pages import DOCS, blocks
from serve.fake_upstream import Say

PAGE = DOCS / "howto/unchanged-application.md"
QUESTION = "How many people live in Reykjavik?"
SAID = "It has 140 thousand."
FIELDS = ("plan", "reasoning", "answer")
# An application, its package, and how often it calls planner and solver.
APPS = [
    ("openai_app.py", "openai", 1, 1),
    ("anthropic_app.py", "anthropic", 1, 1),
    ("google_app.py", "google.genai", 1, 1),
    ("langgraph_app.py", "langgraph langchain_openai", 2, 1),
    ("agents_app.py", "agents", 2, 1),
    ("dspy_app.py", "dspy", 1, 1),
    ("curl_app.sh", "", 0, 1),
]


def answer(request: dict) -> Say:
    """Calls the tool once, if there is one; then answers, to DSPy in its fields."""
    said = json.dumps(request.get("messages") or request.get("input"))
    if request.get("tools") and "140 thousand" not in said:
        return Say(tool=("look_up", {"city": "Reykjavik"}))
    if "[[ ##" in said:
        return Say("\n\n".join(f"[[ ## {field} ## ]]\n{SAID}" for field in FIELDS))
    return Say(SAID)


def applications() -> dict[str, str]:
    """Those on the page, and those in files beside it."""
    shown = {block.path: block.content for block in blocks(PAGE) if "_app." in str(block.path)}
    return shown | {path.name: path.read_text() for path in PAGE.parent.glob("examples/*_app.py")}


def run(app: str, folder, query) -> str:
    """Runs an application; packages may lie in the folder $SCOPE_AGENTS."""
    (folder / app).write_text(applications()[app])
    program = "sh" if app.endswith(".sh") else sys.executable
    environment = {**os.environ, **query.env, "PYTHONPATH": os.environ.get("SCOPE_AGENTS", "")}
    # These two would ask the network: for prices, and to send traces.
    environment |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "OPENAI_AGENTS_DISABLE_TRACING": "1"}
    done = subprocess.run(
        [program, folder / app, QUESTION],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("app", "packages", "planned", "solved"), APPS)
def test_an_application_as_it_is(
    app, packages, planned, solved, endpoint, upstream, tmp_path, monkeypatch
):
    if folder := os.environ.get("SCOPE_AGENTS"):
        monkeypatch.syspath_prepend(folder)
    missing = [name for name in packages.split() if find_spec(name) is None]
    if missing or (app.endswith(".sh") and not shutil.which("curl")):
        pytest.skip(f"needs {missing or 'curl'}")
    upstream.answer = answer
    with endpoint.query({"planner": "medium", "solver": "small"}) as query:
        assert SAID in run(app, tmp_path, query)
    bills = query.ledger.by_module()
    calls = {module: bill.calls for module, bill in bills.items()}
    assert calls == {m: n for m, n in (("planner", planned), ("solver", solved)) if n}
    assert {bill.failed for bill in bills.values()} == {0}
    assert query.ledger.estimated_usd == 0.0
    assert query.ledger.cost_usd == pytest.approx(sum(upstream.usd_by_tag().values()), abs=1e-12)


def test_every_example_is_run_and_short():
    found = applications()
    assert sorted(found) == sorted(app for app, *_ in APPS)
    assert max(text.count("\n") for text in found.values()) <= 28
