"""Entry point of `scope-torch`: runs the jobs that a command line describes."""

from __future__ import annotations

import gc
import hashlib
import logging
import math
import os
import platform
import re
import sys
import traceback
from collections.abc import Callable, Iterable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from scope_torch.cli import COMMANDS, MODULE_OF
from scope_torch.cli.build import (
    build,
    check_device,
    close_evaluator,
    outcomes_of,
    refuse_new_keys,
    refuse_typed_keys,
)
from scope_torch.cli.interrupts import InterruptedSummary, second_interrupt_ends
from scope_torch.cli.messages import describe, message_of
from scope_torch.cli.quoting import refuse_changed_names
from scope_torch.cli.registry import config_dir, register
from scope_torch.cli.saying import say, say_no_more
from scope_torch.cli.targets import read_allowed
from scope_torch.constraints import COST, QUALITY, Constraint
from scope_torch.errors import InputError, JobsFailed
from scope_torch.files import path_of, write_atomically
from scope_torch.llm.keys import without_secrets
from scope_torch.problem import SelectionProblem
from scope_torch.runs.callbacks import Callback
from scope_torch.runs.deadline import TIME_IS_OVER, Deadline
from scope_torch.runs.deployment import deploy
from scope_torch.runs.directory import finished_summary, read_json, write_json
from scope_torch.runs.earlier import known_from, refuse_missing
from scope_torch.runs.journal import is_locked
from scope_torch.runs.runner import run, run_settings
from scope_torch.search.known import Known
from scope_torch.tasks import Task
from scope_torch.tasks.constrained import constrained, with_constraints
from scope_torch.tracking.curves import CurvePlot
from scope_torch.tracking.progress import ProgressBar

# Keys that are not written into the path of a run: they have a component of their own, must not
# change it, or only say where the task's data lie.
_NOT_IN_PATH = re.compile(
    r"task|method|seed|device|tracking(\..*)?|output_dir|experiment|deploy|budget_usd|time_limit|hydra(/.*|\..*)?"
    r"|evaluator|swept|llm(\..*)?|description(\..*)?|method\.name|task\.(name|path|source|module_columns|reference|\w+_column|max_bytes)"
)
# Of values that no other value of a sweep is shortened to.
_IN_FOLDER = re.compile(r"[\w.=,+\[\]-]*")
register()
_MENDABLE = (InputError, HydraException, OmegaConfBaseException)


def main() -> None:
    """Does what the command line says; exits as `scope_torch.cli.main` does."""
    read_allowed()
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")  # or Ray hides summaries of jobs that look alike
    logging.basicConfig(format="scope-torch: %(message)s")
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # or Hydra prints errors itself
    if sys.argv[1:2] == ["run"]:
        del sys.argv[1]
    if len(sys.argv) > 1 and sys.argv[1] in (*COMMANDS, *MODULE_OF):  # all else is Hydra's
        module = MODULE_OF.get(sys.argv[1], sys.argv[1])
        import_module(f"scope_torch.cli.{module}").main(sys.argv[2:])
        return
    with second_interrupt_ends():
        _run_jobs()


def _run_jobs() -> None:
    try:
        refuse_typed_keys(sys.argv[1:])
        refuse_changed_names(sys.argv[1:])
        _job()
    except JobsFailed as error:
        print(f"scope-torch: {error}", file=sys.stderr)
        sys.exit(2)
    except (ValueError, *_MENDABLE) as error:
        _exit(message_of(error))  # Hydra raises ValueError too, for example for experiment=nan
    except BrokenPipeError:  # as by `scope-torch --help | head`
        say_no_more()
        sys.exit(1)
    except OSError as error:  # the disk is full, or the sweep's directory cannot be made
        _exit(f"{error}; make room, or choose another output_dir")
    except KeyboardInterrupt:
        print("interrupted; the same command goes on where this one stopped", file=sys.stderr)
        sys.exit(130)


@hydra.main(version_base="1.3", config_path=config_dir(), config_name="config")
def _job(cfg: DictConfig) -> str | None:
    """Runs one job. In a sweep, returns why it failed: the process of the sweep reports it."""
    in_sweep = HydraConfig.get().mode == RunMode.MULTIRUN
    directory = None
    try:
        overrides = list(HydraConfig.get().overrides.task)  # raises for a wrong interpolation
        enter_folder(HydraConfig.get().runtime.cwd, path_of("output_dir", cfg.output_dir))
        directory = run_dir(cfg, overrides)
        limit_threads(HydraConfig.get().launcher)
        refuse_new_keys(overrides)
        summary = run_from_config(cfg, directory)
    except _MENDABLE as error:
        if not in_sweep:
            _exit(message_of(error))
        return _failed(directory, message_of(error), f"{error}\n")
    except Exception as error:  # a bug must not take the other jobs of a sweep with it
        message = f"{type(error).__name__}: {error}"
        failure = _failed(directory, message, traceback.format_exc(), has_traceback=True)
        if not in_sweep:
            sys.exit(2)
        return failure
    (directory / "error.log").unlink(missing_ok=True)
    say(describe(summary, directory))
    return None


def _failed(directory: Path | None, message: str, log: str, *, has_traceback: bool = False) -> str:
    """Prints why a job failed, and leaves `log` in its directory; returns a line for the sweep.

    Neither has a key: a library may show one in its errors.
    """
    message, path = without_secrets(message), _write_log(directory, without_secrets(log))
    if has_traceback and path is not None:
        message += f"; the traceback is in {path}"
    print(f"scope-torch: {message}", file=sys.stderr)
    return f"{directory or 'a job without a directory'}: {message}"


def _write_log(directory: Path | None, log: str) -> Path | None:
    """Path of the `error.log` written; None if the job has no directory, or the disk fails.

    Nor is one written if another process searches there: that search has not failed.
    """
    if directory is None:
        return None
    path = directory / "error.log"
    try:
        if is_locked(directory / "journal.jsonl"):
            return None
        directory.mkdir(parents=True, exist_ok=True)
        write_atomically(path, log)
    except (OSError, InputError):
        return None
    return path


def enter_folder(folder: str, output_dir: Path) -> None:
    """Enters the folder of the command: a worker of a running Ray began in another one.

    Args:
        folder: The folder in which the command was given; relative paths start there.
        output_dir: Folder of all runs.

    Raises:
        InputError: If this machine has no such folder, and `output_dir` is relative to it.
    """
    try:
        os.chdir(folder)
    except OSError as error:
        if not output_dir.is_absolute():
            raise InputError(
                f"{platform.node()} cannot enter {folder} ({error.strerror}); give an absolute "
                "output_dir in a folder that all machines share"
            ) from error


def limit_threads(launcher: DictConfig) -> None:
    """Limits a job's threads to the CPUs that its launcher asked for.

    A value of OMP_NUM_THREADS decides instead. Joblib and Ray set it for their workers.
    """
    cpus = launcher.get("cpus_per_task")
    if cpus is not None and "OMP_NUM_THREADS" not in os.environ:
        import torch

        torch.set_num_threads(cpus)


def run_from_config(cfg: DictConfig, directory: Path) -> dict[str, Any]:
    """Runs the search of a config in `directory`, unless it has finished there before.

    Returns:
        The content of `result.json`.
    """
    if not 0 <= cfg.seed < 2**32:  # the range that all random generators take
        raise InputError(f"seed={cfg.seed} must be a whole number from 0 to {2**32 - 1}")
    if cfg.device is not None:
        check_device(cfg.device)

    deadline = Deadline(cfg.time_limit)
    tracker = build(cfg.tracking, run_dir=directory)

    def make_method(problem: SelectionProblem, **known: Known) -> Any:
        kernel = build(cfg.kernel)
        common = {"seed": cfg.seed, "device": cfg.device, "budget_usd": cfg.budget_usd}
        return build(cfg.method, problem=problem, kernel=kernel, **common, **known)

    def before_paying(problem: SelectionProblem) -> None:
        """Finds a wrong base LLM or a lost server before a live task pays for its reference."""
        if not 0 < cfg.budget_usd < math.inf:
            raise InputError(f"budget_usd={cfg.budget_usd} must be a positive number of USD")
        problem = replace(problem, deployment_queries=cfg.deployment_queries)
        limits = [Constraint.parse(str(text)) for text in cfg.task.constraints]
        _check_unmeasured(limits)
        objective = cfg.task.objective
        # A bound relative to what is not measured yet may be out of range for that alone.
        if objective != "pareto" and not any(limit.is_relative for limit in limits):
            problem = constrained(problem, limits, objective, {})
        _check_continues(cfg, make_method(problem))
        refuse_missing(_earlier(cfg), directory)
        tracker.check(problem)

    task: Task = _constrained(cfg, before_paying)
    problem = replace(task.problem, deployment_queries=cfg.deployment_queries)
    task = task._replace(problem=problem)
    try:
        _check_continues(cfg, make_method(task.problem))
        method = make_method(task.problem, **_known(cfg, task, directory))
        return _run_task(cfg, task, method, tracker, directory, deadline)
    finally:
        close_evaluator(task.evaluator)


def _check_unmeasured(constraints: Iterable[Constraint]) -> None:
    """Refuses bounds that are relative to what is not measured of the reference of a live task."""
    for limit in constraints:
        if limit.is_relative and limit.outcome not in (COST, QUALITY):
            raise InputError(
                f"{limit}: a live task does not measure theta_0's average {limit.outcome}; write "
                "an absolute bound"
            )


def _check_continues(cfg: DictConfig, method: Any) -> None:
    if cfg.continue_from and not hasattr(method, "known"):
        raise InputError(
            f"continue_from={cfg.continue_from}: method={cfg.method.name} uses no observations of "
            "earlier runs; scope and scope_joint do"
        )


def _known(cfg: DictConfig, task: Task, directory: Path) -> dict[str, Known]:
    """What the runs that are named in `continue_from` observed; empty if none is."""
    paths = _earlier(cfg)
    if not paths:
        return {}
    return {"known": known_from(paths, task.problem, task.evaluator, run_dir=directory)}


def _earlier(cfg: DictConfig) -> list[str]:
    given = cfg.continue_from or []
    return [given] if isinstance(given, str) else [str(path) for path in given]


def _constrained(cfg: DictConfig, before_paying: Callable[[SelectionProblem], Any]) -> Task:
    """The task of a config, with its constraints."""
    constraints = [str(text) for text in cfg.task.constraints]
    is_front = cfg.task.objective == "pareto"
    if is_front and (cfg.method.name != "scope_front" or constraints):
        raise InputError(
            f"task.objective=pareto: method={cfg.method.name}, constraints={constraints}; "
            "method=scope_front searches the front of cost and quality, without constraints"
        )
    task: Task = build(cfg.task, before_paying=before_paying, **outcomes_of(cfg.task))
    return task if is_front else with_constraints(task, constraints, cfg.task.objective)


def _run_task(
    cfg: DictConfig,
    task: Task,
    method: Any,
    tracker: Callback,
    directory: Path,
    deadline: Deadline,
) -> dict[str, Any]:
    if cfg.deploy and task.held_out is None:  # before the search, which may cost money
        raise InputError(f"task {task.problem.name!r} has no held-out queries; say deploy=false")
    settings = run_settings(task.problem, method, task.evaluator, cfg.budget_usd)
    summary = finished_summary(directory, settings)
    if summary is None:
        callbacks = [ProgressBar(), CurvePlot(), tracker, InterruptedSummary(directory)]
        gc.freeze()  # the collector need not visit the objects of imported modules
        try:
            result = run(
                task.problem,
                method,
                task.evaluator,
                cfg.budget_usd,
                run_dir=directory,
                callbacks=callbacks,
                time_limit=deadline,
            )
        finally:
            gc.unfreeze()
        summary = result.summary()
    if cfg.deploy and summary["stop_reason"] != TIME_IS_OVER:
        _deploy(task, summary, directory / "deployment.json")
    return summary


def _deploy(task: Task, summary: dict[str, Any], path: Path) -> None:
    thetas = {"theta_out": summary["theta_out_codes"], "reference": list(task.problem.theta_ref)}
    if best := summary.get("best_feasible_codes"):
        thetas["best_feasible"] = best
    told = read_json(path) if path.exists() else None
    # Of another choice, if the search has gone on.
    if told is not None and all(told.get(n, {}).get("codes", of) == of for n, of in thetas.items()):
        return
    assert task.held_out is not None  # `_run_task` has looked, before the search
    held_out = task.held_out()
    try:
        deployed = {name: {**deploy(held_out, of), "codes": of} for name, of in thetas.items()}
        num_failed = getattr(held_out.evaluator, "num_failed", 0)
    finally:
        close_evaluator(held_out.evaluator)
    if num_failed:  # they count as wrong answers
        raise InputError(
            f"{num_failed} calls on held-out queries gave no reply, so {path} was not written; the "
            "same command asks for these again"
        )
    write_json(path, deployed)


def run_dir(cfg: DictConfig, overrides: list[str]) -> Path:
    """The directory of a run: output_dir/[experiment/]task/method/[other overrides/]seed=...

    Equal commands give equal paths, so that the second resumes the first.

    Raises:
        InputError: If the name of the task, method or experiment contains a slash or backslash.
    """
    names = {"task": cfg.task.name, "method": cfg.method.name}
    if cfg.experiment:
        names["experiment"] = cfg.experiment
    for what, name in names.items():
        if re.search(r"[/\\\0]|^\.*$", str(name)):
            raise InputError(f"{what} {name!r} cannot name a folder; leave out / and \\")
    keys = {o: o.partition("=")[0].lstrip("+~") for o in overrides}
    other = [o for o, key in keys.items() if not _NOT_IN_PATH.fullmatch(key)]
    differs = {*cfg.swept} - {"task.name"}
    swept = sorted(o for o, key in keys.items() if key in differs and o not in other)
    text = re.sub(r"[^\w.=,+-]+", "_", ",".join(sorted([*other, *swept])))
    variant = text[:150]
    if variant != text:  # what was cut off may be what differs
        swept = [*sorted(o for o in other if keys[o] in differs), *swept]
    if swept and (variant != text or not all(map(_IN_FOLDER.fullmatch, swept))):
        variant = f"{variant}-{hashlib.sha256(','.join(swept).encode()).hexdigest()[:8]}"
    return Path(
        cfg.output_dir,
        cfg.experiment,
        str(cfg.task.name),
        str(cfg.method.name),
        variant,
        f"seed={cfg.seed}",
    )


def _exit(message: str) -> NoReturn:
    print(f"scope-torch: {message}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
