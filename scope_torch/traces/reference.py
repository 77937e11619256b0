"""A reference that is known from a log: its LLMs, and its cost and quality on each query."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from scope_torch.errors import InputError, printable
from scope_torch.observation import Observation
from scope_torch.results.saving import load_models, save_models
from scope_torch.tasks.files import read_text
from scope_torch.traces.span import number
from scope_torch.traces.summary import LoggedQuery, Summary

_MEND = "write it with scope-torch import"


@dataclass(frozen=True)
class LoggedReference(Mapping[str, str]):
    """The LLM of each module, and what it has cost on queries that were logged.

    It is a mapping of modules to LLMs, so it stands wherever a reference is asked for.

    Args:
        models: The LLM of each module.
        queries: The queries, in the order of the log.

    Examples:
        >>> queries = [LoggedQuery("q1", 1, 0.25, 1.0, None), LoggedQuery("q2", 1, 0.75, 0.0, None)]
        >>> reference = LoggedReference({"plan": "nano"}, queries)
        >>> reference["plan"], reference.averages()["reference_cost_usd"]
        ('nano', 0.5)
    """

    models: Mapping[str, str]
    queries: Sequence[LoggedQuery]

    def __getitem__(self, module: str) -> str:
        return self.models[module]

    def __iter__(self) -> Iterator[str]:
        return iter(self.models)

    def __len__(self) -> int:
        return len(self.models)

    def answers(self) -> list[tuple[float, float]]:
        """(cost in USD, quality in [0, 1]) of the reference on each query.

        Raises:
            InputError: If a query has no cost or no score.
        """
        found: list[tuple[float, float]] = []
        for query in self.queries:
            if query.cost_usd is None or query.quality is None:
                raise InputError(
                    f"query {query.id!r} has no cost or no score in the log; leave it out with "
                    "only([...]), or let select() measure the reference: reference=dict(...) of it"
                )
            found.append((query.cost_usd, query.quality))
        return found

    def only(self, queries: Sequence[str]) -> LoggedReference:
        """The same with these queries, in this order: that of your data set.

        Args:
            queries: Their identifiers; line breaks in them are those of the log.

        Raises:
            InputError: If one is not in the log.
        """
        known = {printable(query.id): query for query in self.queries}
        names = [printable(str(query)) for query in queries]  # a log has texts
        for name in names:
            if name not in known:
                raise InputError(
                    f"no query of the log is called {name!r}; leave it out, or give the name that "
                    f"it has there, such as {next(iter(known), '')!r}"
                )
        return LoggedReference(self.models, [known[name] for name in names])

    def checked(self, num_queries: int) -> LoggedReference:
        """This reference, for a data set of so many queries.

        Raises:
            InputError: If the log has another number, or as for `answers`.
        """
        if len(self.answers()) != num_queries:
            raise InputError(
                f"{num_queries} queries, and {len(self.queries)} in the log of the reference; give "
                "reference.only([...]) the log's name of each query, in the order of your data set"
            )
        return self

    def observations(self, theta_ref: tuple[int, ...], rows: Sequence[int]) -> list[Observation]:
        """The answers as observations of theta_0.

        Args:
            theta_ref: Codes of the reference.
            rows: The number of each query of the problem in the log.

        Raises:
            InputError: As for `answers`.
        """
        answers, seconds = self.answers(), [query.seconds for query in self.queries]
        return [
            Observation(
                theta_ref,
                query,
                *answers[row],
                outcomes=None if (s := seconds[row]) is None else {"latency_s": s},
            )
            for query, row in enumerate(rows)
        ]

    def averages(self) -> dict[str, Any]:
        """The arguments of `SelectionProblem` that the log knows.

        `num_queries`, `reference_cost_usd`, `reference_quality` and `reference_answers`.

        Raises:
            InputError: As for `answers`.
        """
        answers = self.answers()
        costs, qualities = zip(*answers, strict=True)
        return {
            "num_queries": len(answers),
            "reference_cost_usd": math.fsum(costs) / len(answers),
            "reference_quality": math.fsum(qualities) / len(answers),
            "reference_answers": tuple(answers),
        }


def save_reference(path: Path | str, summary: Summary, facts: Mapping[str, Any]) -> Path:
    """Writes the reference of a log, for `load_reference`; `load_models` reads its LLMs too.

    Only its owner may read it: names of queries may be questions.

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
    return save_models(path, summary.models, content, private=True)


def load_reference(path: Path | str) -> LoggedReference:
    """A reference that `scope-torch import` has written.

    Args:
        path: The file, such as reference.json.

    Raises:
        InputError: If it cannot be read, or is none.

    Examples:
        >>> from scope_torch.traces.summary import TracedModule
        >>> modules, query = {"plan": TracedModule("nano")}, LoggedQuery("q1", 1, 0.25, 1.0, None)
        >>> path = save_reference("reference.json", Summary(modules, [query]), {})
        >>> load_reference(path).only(["q1"]).answers()
        [(0.25, 1.0)]
    """
    models = {printable(name): printable(llm) for name, llm in load_models(path).items()}
    try:
        rows = json.loads(read_text(Path(path)))["queries"]
        queries = [_query(row) for row in rows]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"{path} has no queries that can be read ({error}); {_MEND}") from error
    if not queries:
        raise InputError(f"{path} has no queries; {_MEND}")
    return LoggedReference(models, queries)


def _query(row: Mapping[str, Any]) -> LoggedQuery:
    """A query as it was written.

    Raises:
        ValueError: If a number is outside its range.
    """
    cost, quality, seconds = (number(row[key]) for key in ("cost_usd", "quality", "seconds"))
    if not (isinstance(row["id"], str) and (cost is None or cost >= 0)):
        raise ValueError(f"{row!r:.80}")
    if quality is not None and not 0 <= quality <= 1:
        raise ValueError(f"quality={quality} of query {row['id']} is not in [0, 1]")
    return LoggedQuery(printable(row["id"]), int(row["traces"]), cost, quality, seconds)
