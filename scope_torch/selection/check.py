"""`check`: whether one configuration of an application is good enough beside another one.

A test in pairs that may be looked at after every query, see `scope_torch.bounds.paired`. It asks
both configurations for one query after another, and stops as soon as the answer is clear.
"""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np

from scope_torch.constraints import COST, QUALITY, Constraint, at_least
from scope_torch.errors import InputError
from scope_torch.evaluators.application import items_of
from scope_torch.evaluators.function import FunctionEvaluator
from scope_torch.factors import choice_of
from scope_torch.files import write_atomically
from scope_torch.results.checked import (
    Certificate,
    CheckResult,
    Pair,
    Verdict,
    limits_of,
    outcomes_of,
)
from scope_torch.results.saving import load_models, names_models
from scope_torch.runs.journal import read_journal
from scope_torch.selection.arguments import Arguments
from scope_torch.selection.before import logged_reference
from scope_torch.selection.checks import check_kind, checked_number, checked_size, in_order
from scope_torch.selection.face import serving
from scope_torch.selection.pairs import Pairs
from scope_torch.selection.sampling import warn_of_copies
from scope_torch.selection.setup import ONLY_MODULE, Setup, constraints_of, set_up
from scope_torch.selection.steps import by_codes
from scope_torch.traces.reference import LoggedReference, load_reference

logger = logging.getLogger(__name__)

Named = str | Path | Mapping[str, str]  # an LLM, a file of `RunResult.save`, or LLMs by module

_PASSES = 4  # over all queries, if nobody says how many pairs: equal ones may never decide
_OF_SEARCH = {
    *("models", "objective", "allowed", "base", "holdout", "deployment_queries", "batch_size"),
    *("hour_usd", "repeat", "repeats", "reference_queries", "optimizer", "callbacks", "dry_run"),
}


def check(
    app: Any,
    configuration: Named,
    *,
    reference: Named | None = None,
    constraints: Sequence[Constraint | str] = (),
    delta: float = 0.05,
    certificate: Certificate = "fresh",
    max_pairs: int | None = None,
    **arguments: Any,
) -> CheckResult:
    """Tests whether a configuration may take the place of another one.

    Both answer one query after another, in random order. The test ends when it has **passed** (the
    loss of quality is at most `max_quality_loss`, and every constraint holds), when it has
    **failed** (one of them does not hold), or **undecided**: when money, time or pairs run out.
    Either verdict is wrong with probability at most `delta`, however early it comes.

    Args:
        app: As for `select`.
        configuration: The new LLM of each module, or one name for all; or a file of
            `RunResult.save`.
        reference: The LLMs to compare with, likewise; or what `load_reference` reads, or its file,
            if that calls each query by its input: it then is not asked. None: with `min_quality`
            and absolute constraints there is nothing to compare with.
        constraints: As for `select`; here they may bound `cost_usd` too.
        delta: Probability of a wrong verdict, in (0, 1); of each of the two.
        certificate: What the verdict is about. `fresh`: expected outcomes on these queries, even if
            answers change from call to call; queries are drawn with replacement. `sequence`: the
            answers to these queries, if they do not change; a pair is asked once, and all Q decide.
            `population`: queries of which these are a random sample; each is asked once.
        max_pairs: After so many queries the test is undecided. None: 4 Q for `fresh`, else Q.
        arguments: Those of `select` that fit: `dataset`, `budget_usd`, `metric`,
            `max_quality_loss` or `min_quality`, `endpoint`, `prices`, `concurrency`, `run_dir`,
            `continue_from`, ... With `continue_from` known answers of the reference are not asked
            again, unless a search has tried the configuration; with `sequence` no known answer is.

    Raises:
        InputError: If a setting cannot be used, before the first call.

    Examples:
        >>> import scope_torch as st
        >>> def app(models, question):
        ...     answer = question.upper() if models["answer"] != "nano" else "?"
        ...     return answer, {"nano": 0.001, "mini": 0.002, "pro": 0.03}[models["answer"]]
        >>> mini, pro = {"answer": "mini"}, {"answer": "pro"}
        >>> data = [(text, text.upper()) for text in ["one", "two", "three"] * 20]
        >>> how = {"dataset": data, "metric": st.metrics.exact_match, "budget_usd": 5}
        >>> result = st.check(app, mini, reference=pro, max_quality_loss=0.05, **how)
        >>> result.verdict, result.exit_status
        ('pass', 0)
        >>> print(st.check(app, {"answer": "nano"}, reference=pro, max_quality_loss=0.05, **how))
        fail: answer=nano (was pro)
          loss of quality: 100.0% (13.6% to 100.0%), tolerated 5%: does not hold
          quality: 0 new, 1 reference, on 7 draws of 60 queries
          USD per 1,000 queries: 1 new, 30 reference: 0.033 times
          paid: 0.22 USD for 14 calls
          about expected outcomes on these 60 queries, however answers vary; wrong: at most 5%
    """
    if certificate not in get_args(Certificate):
        raise InputError(f"certificate={certificate!r} must be one of {get_args(Certificate)}")
    if not 0 < checked_number("delta", delta) < 1:
        raise InputError(f"delta={delta} must lie in (0, 1)")
    reference = _with_answers(configuration, reference, arguments)
    setup, theta, limits = between(app, configuration, reference, constraints, arguments)
    has_reference = any(one.is_relative for one in limits)
    Q = setup.problem.num_queries
    most = Q if certificate != "fresh" else _PASSES * Q
    if max_pairs is not None:
        most = checked_size("max_pairs", max_pairs)
        if most > Q and certificate != "fresh":
            raise InputError(f"max_pairs={most}: there are {Q} queries, and each is asked once")
    plan = _Plan(limits, delta, certificate, most, has_reference)
    setup.deadline.begin()
    with serving(setup) as (application, make_evaluator):
        application.check(setup.searched)
        if certificate == "population":
            warn_of_copies(setup.searched)
        fixed = certificate == "sequence"
        evaluator = make_evaluator(setup.problem, queries=setup.searched, deterministic=fixed)
        found = _run(setup, theta, evaluator, plan)
        answers = by_codes(setup.problem, application.outputs, setup.searched)
    expected = [item.expected for item in setup.searched] if application.has_metric else None
    queries = [item.input for item in setup.searched]
    found = replace(found, queries=queries, expected=expected, answers=answers)
    if setup.folder is not None:
        write_atomically(setup.folder / "check.json", json.dumps(found.to_json(), indent=2) + "\n")
    return found


@dataclass(frozen=True)
class _Plan:
    """How to test; see `check`."""

    limits: Sequence[Constraint]
    delta: float
    certificate: Certificate
    max_pairs: int
    has_reference: bool


def between(
    app: Any,
    configuration: Named,
    reference: Named | None,
    constraints: Sequence[Constraint | str],
    arguments: Mapping[str, Any],
) -> tuple[Setup, tuple[int, ...], list[Constraint]]:
    """The setup of a selection between two configurations, codes of the new one, and constraints.

    Raises:
        InputError: If they cannot be compared, or an argument is one of a search.
    """
    if refused := sorted(set(arguments) & _OF_SEARCH):
        raise InputError(f"{', '.join(refused)}: that is for select; here is no search")
    check_kind("constraints", constraints)
    limits = constraints_of(constraints)
    told = llms_of(configuration), llms_of(configuration if reference is None else reference)
    modules = next((list(one) for one in told if isinstance(one, Mapping)), [ONLY_MODULE])
    new, old = (dict.fromkeys(modules, one) if isinstance(one, str) else dict(one) for one in told)
    if set(new) != set(old):
        raise InputError(
            f"the configuration has the modules {list(new)}, the reference {list(old)}"
        )
    is_logged = isinstance(reference, LoggedReference)
    if reference is not None and not is_logged and new == old:
        raise InputError(f"configuration and reference are the same: {new}")
    models = {module: list(dict.fromkeys([old[module], new[module]])) for module in old}
    measured = [limit for limit in limits if limit.name != COST]
    both: dict[str, Any] = {"models": models, "reference": reference if is_logged else old}
    setup = set_up(Arguments(app, constraints=measured, **both, **arguments))
    limits = _limits(setup, limits)
    if reference is None and (relative := [str(one) for one in limits if one.is_relative]):
        raise InputError(f"{relative[0]}: give the reference= that it is relative to")
    return setup, setup.problem.codes([new[module] for module in setup.problem.modules]), limits


def llms_of(configuration: Any) -> Any:
    """The LLMs in a file of `RunResult.save`; anything else stays."""
    is_name = isinstance(configuration, str) and not names_models(configuration)
    if isinstance(configuration, Mapping):
        return {module: choice_of(llm) for module, llm in configuration.items()}
    if is_name and configuration:
        return choice_of(configuration)
    if isinstance(configuration, str | Path):
        return load_models(configuration)
    raise InputError(f"{configuration!r:.80} must name an LLM, or one for each module, or a file")


def _with_answers(
    configuration: Named, reference: Named | None, arguments: dict[str, Any]
) -> Named | None:
    """The reference, with its answers to the inputs if it is a file that has them all.

    A data set that can be read only once becomes a list.

    Raises:
        InputError: If the file or the data set cannot be read.
    """
    if not isinstance(reference, str | Path) or "dataset" not in arguments:
        return reference
    if Path(reference).suffix != ".json":
        return reference
    path, new, models = Path(reference), llms_of(configuration), llms_of(reference)
    new = dict.fromkeys(models, new) if isinstance(new, str) else new
    is_log = "queries" in json.loads(path.read_text(encoding="utf-8"))
    if not is_log or (new != models and _began_to_ask(arguments.get("run_dir"))):
        return reference
    if isinstance(arguments["dataset"], Iterator):
        arguments["dataset"] = list(arguments["dataset"])
    items = items_of(in_order(arguments["dataset"]), arguments.get("metric") is not None)
    found = load_reference(path)
    try:
        return found.only([str(item.input) for item in items]).checked(len(items))
    except InputError as error:
        logger.warning(
            "the answers in %s are not used, and the reference is asked: %s. A log must call each "
            "query by its input",
            path,
            error,
        )
        return reference


def _began_to_ask(run_dir: Path | str | None) -> bool:
    """Whether a run has asked the reference: earlier versions read names alone from a log."""
    path = None if run_dir is None else Path(run_dir) / "journal.jsonl"
    return path is not None and any(not any(one.theta) for one in read_journal(path))


def _limits(setup: Setup, constraints: Sequence[Constraint]) -> list[Constraint]:
    """All constraints; that on quality first.

    Raises:
        InputError: If two are on one outcome, a relative one has outcomes below 0, or a log of the
            reference lacks one.
    """
    problem, given = setup.problem, setup.given
    limits = list(constraints)
    if problem.epsilon is not None:
        limits.insert(0, at_least(QUALITY, relative_to_reference=1 - problem.epsilon))
    elif given.min_quality is not None:
        limits.insert(0, at_least(QUALITY, float(given.min_quality)))
    for limit in limits:
        if limit.is_relative and limit.low < 0:
            raise InputError(f"{limit}: a bound relative to the reference needs outcomes from 0 up")
    names = [limit.name for limit in limits]
    if len(set(names)) < len(names):
        raise InputError(f"constraints={list(map(str, limits))}: one for each outcome")
    for one in logged_reference(setup):
        for limit in limits:
            if limit.is_relative:
                limit.of(one)  # refuses a log without the outcome, before anything is paid for
    return limits


def _run(
    setup: Setup, theta: tuple[int, ...], evaluator: FunctionEvaluator, plan: _Plan
) -> CheckResult:
    """Asks until the verdict is clear, or money, time or draws run out."""
    num_queries = setup.problem.num_queries if plan.certificate == "sequence" else None
    verdict: Verdict = "undecided"
    outcomes = [outcomes_of((), limit) for limit in plan.limits]

    def decides(pairs: Sequence[Pair]) -> bool:
        nonlocal verdict
        for at, limit in enumerate(plan.limits):
            new, old = outcomes[at]
            more, more_old = outcomes_of(pairs[len(new) :], limit)
            old = None if old is None or more_old is None else np.append(old, more_old)
            outcomes[at] = np.append(new, more), old
        kept = [one.kept for one in limits_of(outcomes, plan.limits, plan.delta, num_queries)]
        verdict = "pass" if all(kept) else "fail" if False in kept else "undecided"
        return verdict != "undecided"

    draws = _draws(setup.problem.num_queries, plan, setup.seed)
    is_fixed = plan.certificate == "sequence"
    asked = Pairs(setup, theta, evaluator, draws, plan.has_reference, is_fixed)
    if not is_fixed and asked.forget_chosen() and plan.certificate == "population":
        logger.warning(
            "a search has tried the configuration on queries of these: if it was chosen because it "
            "did well on them, it passes more often than %.3g; give queries that are new to it",
            plan.delta,
        )
    settings = {
        "name": "check",
        "limits": [str(limit) for limit in plan.limits],
        "delta": plan.delta,
        "certificate": plan.certificate,
        "max_pairs": plan.max_pairs,
    }
    found = asked.ask(settings, decides, plan.max_pairs, setup.budget_usd)
    return CheckResult(
        setup.problem,
        theta,
        verdict,
        limits_of(outcomes, plan.limits, plan.delta, num_queries, with_interval=True),
        found.pairs,
        plan.certificate,
        plan.delta,
        found.why_it_ended,
        found.paid,
        found.lost_usd,
        found.num_known,
        is_logged=setup.logged is not None,
    )


def _draws(num_queries: int, plan: _Plan, seed: int) -> Iterator[int]:
    """The queries in the order in which they are drawn."""
    order = random.Random(f"check {seed}")
    if plan.certificate == "fresh":
        return (order.randrange(num_queries) for _ in range(plan.max_pairs))
    return iter(order.sample(range(num_queries), plan.max_pairs))
