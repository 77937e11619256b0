"""Average cost of each module of a system, beside the cost of the paper's system."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from scope_torch.cli.paper import paper_numbers, paper_task
from scope_torch.cli.tables import markdown
from scope_torch.problem import SelectionProblem
from scope_torch.results.digits import per_thousand

# The paper's tasks that the live ones are; it tells no cost of a single module.
_LIVE = {
    "bird_live": "text_to_sql",
    "transformation_live": "data_transformation",
    "restaurant_live": "data_imputation",
}


class ModuleCosts(NamedTuple):
    """Average cost of each module under one configuration.

    Attributes:
        theta: Codes of the configuration.
        usd: USD of each module for a query.
    """

    theta: Sequence[int]
    usd: Sequence[float]


def module_table(problem: SelectionProblem, costs: Mapping[str, ModuleCosts | None]) -> list[str]:
    """Lines of a table in Markdown, then the paper's cost where the task is one of the paper's.

    Args:
        problem: Gives the modules and LLMs.
        costs: By the name of the configuration; None where the costs of its modules are unknown.

    Returns:
        The lines; none if no costs of modules are known.

    Examples:
        >>> from scope_torch.tasks.synthetic import synthetic_task
        >>> problem = synthetic_task(num_queries=5).problem
        >>> print("\\n".join(module_table(problem, {"best": ModuleCosts((4, 0), [0.002, 0.01])})))
        | module, USD/1000 | best          |
        | ---------------- | ------------- |
        | module_1         | 2 (nano)      |
        | module_2         | 10 (frontier) |
        | all              | 12            |
    """
    known = {name: one for name, one in costs.items() if one is not None}
    if not known:
        return []
    chosen = [problem.names(one.theta) for one in known.values()]
    rows = [
        [
            module,
            *(
                f"{per_thousand(one.usd[i])} ({llms[module]})"
                for one, llms in zip(known.values(), chosen, strict=True)
            ),
        ]
        for i, module in enumerate(problem.modules)
    ]
    total = ["all", *(per_thousand(sum(one.usd)) for one in known.values())]
    return [*markdown([["module, USD/1000", *known], *rows, total]), *_of_paper(problem)]


def _of_paper(problem: SelectionProblem) -> list[str]:
    """The cost of the whole system in the paper, if the reference is the paper's."""
    task = _LIVE.get(problem.name, paper_task(problem.name))
    numbers = paper_numbers()["deployment"].get(task, {})
    if not numbers or set(problem.names(problem.theta_ref).values()) != {"GPT-5.2"}:
        return []
    reference, scope = (per_thousand(numbers[name][0]) for name in ("reference", "scope"))
    return [
        f"in the paper, on held-out queries: reference {reference}, result of SCOPE {scope}; it "
        "tells no cost of single modules"
    ]
