"""Runs with names that are dangerous in HTML, and a reader of pages."""

from __future__ import annotations

from datetime import datetime
from html.parser import HTMLParser
from pathlib import Path

from scope_torch.evaluators.table import RecordedTable, TableEvaluator
from scope_torch.methods import make_scope
from scope_torch.runs.runner import run
from scope_torch.tasks import Task
from scope_torch.tasks.synthetic import synthetic_task

NOW = datetime(2026, 11, 21, 12, 0)
EVIL = '<script>alert("1")</script>'
VOID = {"meta"}


def evil_task() -> Task:
    plain = synthetic_task(num_queries=30)
    table = plain.evaluator.table
    llms = tuple(EVIL if name == "medium" else name for name in plain.problem.llms[0])
    modules = ("plan & <b>think</b>", "solve")
    renamed = RecordedTable(
        modules, (llms, llms), table.queries, table.cost_usd, table.quality
    )  # fmt: skip
    problem = renamed.problem("<i>task</i>", ("frontier", "frontier"), 0.05)
    return Task(problem, TableEvaluator(renamed))


TASK = evil_task()


def search(run_dir: Path | None, budget: float = 2.0, callbacks=(), method=None, task=TASK):
    method = method or make_scope(task.problem, base="small", seed=0)
    return run(
        task.problem, method, task.evaluator, budget, run_dir=run_dir, callbacks=callbacks
    )  # fmt: skip


class Page(HTMLParser):
    """Checks that tags are closed in order; collects the text and the attributes."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = self.unfolded = ""
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID and self.get_starttag_text()[-2:] != "/>":
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("script", "style"):
            return
        self.text += data
        if "details" not in self.open and "title" not in self.open:
            self.unfolded += data

    def words(self) -> str:
        return " ".join(self.text.split())

    def of_class(self, name: str) -> list[tuple[str, dict[str, str | None]]]:
        return [(t, a) for t, a in self.tags if name in (a.get("class") or "").split()]

    def refresh(self) -> str | None:
        metas = [attrs for tag, attrs in self.tags if tag == "meta"]
        return next((m["content"] for m in metas if m.get("http-equiv") == "refresh"), None)
