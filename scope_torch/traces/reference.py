"""A reference that is known from a log: its LLMs, and its cost and quality on each query."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from scope_torch.errors import InputError
from scope_torch.runs.saving import load_models, save_models
from scope_torch.tasks.files import read_text
from scope_torch.traces.span import number
from scope_torch.traces.summary import Query, Summary

_MEND = "write it with scope-torch import"


@dataclass(frozen=True)
class LoggedReference(Mapping[str, str]):
    """The LLM of each module, and what it has cost on queries that were logged.

    It is a mapping of modules to LLMs, so it stands wherever a reference is asked for.

    Args:
        models: The LLM of each module.
        queries: The queries, in the order of the log.

    Examples:
        >>> queries = [Query("q1", 1, 0.25, 1.0, None), Query("q2", 1, 0.75, 0.0, None)]
        >>> reference = LoggedReference({"plan": "nano"}, queries)
        >>> reference["plan"], reference.averages()["reference_cost_usd"]
        ('nano', 0.5)
    """

    models: Mapping[str, str]
    queries: Sequence[Query]

    def __getitem__(self, module: str) -> str:
        return self.models[module]

    def __iter__(self) -> Iterator[str]:
        return iter(self.models)

    def __len__(self) -> int:
        return len(self.models)

    def answers(self, queries: Sequence[str] | None = None) -> list[tuple[float, float]]:
        """(cost in USD, quality in [0, 1]) of the reference on each query.

        Args:
            queries: Their identifiers, in the order of your data set; None for all in the log.

        Raises:
            InputError: If a query is not in the log, or has no cost or no score.
        """
        known = {query.id: query for query in self.queries}
        found: list[tuple[float, float]] = []
        for name in known if queries is None else queries:
            query = known.get(name)
            if query is None or query.cost_usd is None or query.quality is None:
                lacks = "is not in the log" if query is None else "has no cost or no score there"
                raise InputError(
                    f"query {name!r} {lacks}; leave it out of your queries, log and score it, or "
                    "let select() measure the reference: reference=dict(...) of this one"
                )
            found.append((query.cost_usd, query.quality))
        return found

    def averages(self, queries: Sequence[str] | None = None) -> dict[str, Any]:
        """The arguments of `SelectionProblem` that the log knows, for these queries.

        `num_queries`, `reference_cost_usd`, `reference_quality` and `reference_answers`.

        Args:
            queries: As for `answers`.

        Raises:
            InputError: As for `answers`.
        """
        answers = self.answers(queries)
        costs, qualities = zip(*answers, strict=True)
        return {
            "num_queries": len(answers),
            "reference_cost_usd": math.fsum(costs) / len(answers),
            "reference_quality": math.fsum(qualities) / len(answers),
            "reference_answers": tuple(answers),
        }


def save_reference(path: Path | str, summary: Summary, facts: Mapping[str, Any]) -> Path:
    """Writes the reference of a log, for `load_reference`; `load_models` reads its LLMs too.

    Args:
        path: A `*.json` file.
        summary: What the log says.
        facts: Further entries: where it comes from.

    Raises:
        InputError: If the file is no `*.json` or cannot be written, or a price is not known.
    """
    if Path(path).suffix != ".json":
        raise InputError(f"{path} must be a *.json file, such as reference.json")
    if summary.unpriced:
        names = ", ".join(summary.unpriced)
        raise InputError(f"no price is known for {names}; give --prices prices.toml with its price")
    modules = {name: asdict(module) for name, module in summary.modules.items()}
    content = {
        "cost_usd": summary.cost_usd,
        "quality": summary.quality,
        "score": summary.score,
        **facts,
        "modules": modules,
        "queries": [query._asdict() for query in summary.queries],
    }
    return save_models(path, summary.models, content)


def load_reference(path: Path | str) -> LoggedReference:
    """A reference that `scope-torch import` has written.

    Args:
        path: The file, such as reference.json.

    Raises:
        InputError: If it cannot be read, or is none.

    Examples:
        >>> from scope_torch.traces.summary import Module
        >>> modules, queries = {"plan": Module("nano")}, [Query("q1", 1, 0.25, 1.0, None)]
        >>> path = save_reference("reference.json", Summary(modules, queries), {})
        >>> load_reference(path).answers(["q1"])
        [(0.25, 1.0)]
    """
    models = load_models(path)
    try:
        rows = json.loads(read_text(Path(path)))["queries"]
        queries = [_query(row) for row in rows]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"{path} has no queries that can be read ({error}); {_MEND}") from error
    if not queries:
        raise InputError(f"{path} has no queries; {_MEND}")
    return LoggedReference(models, queries)


def _query(row: Mapping[str, Any]) -> Query:
    """A query as it was written.

    Raises:
        ValueError: If a number is outside its range.
    """
    cost, quality, seconds = (number(row[key]) for key in ("cost_usd", "quality", "seconds"))
    if not (isinstance(row["id"], str) and (cost is None or cost >= 0)):
        raise ValueError(f"{row!r:.80}")
    if quality is not None and not 0 <= quality <= 1:
        raise ValueError(f"quality={quality} of query {row['id']} is not in [0, 1]")
    return Query(row["id"], int(row["traces"]), cost, quality, seconds)
