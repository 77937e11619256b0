"""Runs a search: `scope-torch task=... method=... budget_usd=... seed=...` (see conf/)."""

from __future__ import annotations

import contextlib
import gc
import inspect
import json
import logging
import os
import re
import sys
import traceback
from collections.abc import Generator
from pathlib import Path
from typing import Any, NoReturn

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from hydra.utils import instantiate
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from scope_torch.cli.interrupts import InterruptedSummary, second_interrupt_ends
from scope_torch.cli.schema import config_dir, register
from scope_torch.cli.targets import check_target
from scope_torch.errors import InputError, JobsFailed
from scope_torch.evaluators import Evaluator
from scope_torch.problem import SelectionProblem
from scope_torch.runs.callbacks import Callback
from scope_torch.runs.deployment import deploy
from scope_torch.runs.directory import finished_summary, write_atomically
from scope_torch.runs.plotting import CurvePlot
from scope_torch.runs.runner import run, run_settings
from scope_torch.tasks import Task
from scope_torch.tracking.progress import ProgressBar

# What has a path component of its own, must not change it, or merely describes the task's data.
_NOT_IN_PATH = re.compile(
    r"task|method|seed|device|tracking(\..*)?|output_dir|experiment|deploy|budget_usd|hydra(/.*|\..*)?"
    r"|evaluator|llm(\..*)?|task\.(name|path|source|module_columns|reference|\w+_column)"
)
_OPTIONS = re.compile(r"Available options in '[^']*':((?:\n\t\S+)+)")  # of Hydra
_LAUNCHER = re.compile(r"hydra/launcher/(joblib|submitit|ray)")
_EXTRA_OF_LAUNCHER = {"joblib": "joblib", "submitit": "slurm", "ray": "ray"}
register()
_MENDABLE = (InputError, HydraException, OmegaConfBaseException)


def main() -> None:
    """Entry point; exits with 2 if the user can mend the error, with 130 after Ctrl-C."""
    logging.basicConfig(format="scope-torch: %(message)s")
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # errors reach this function as they are
    if sys.argv[1:2] == ["watch"]:  # all else is Hydra's
        from scope_torch.cli import watch  # which imports gpytorch

        watch.main(sys.argv[2:])
        return
    with second_interrupt_ends():
        _run_jobs()


def _run_jobs() -> None:
    try:
        with _no_callbacks():
            _job()
    except JobsFailed as error:
        print(f"scope-torch: {error}", file=sys.stderr)
        sys.exit(2)
    except (ValueError, *_MENDABLE) as error:
        _exit(_message(error))  # Hydra raises plain ValueError as well, as for experiment=nan
    except OSError as error:  # a full disk, or a sweep's directory that cannot be made
        _exit(f"{error}; make room, or choose another output_dir")
    except KeyboardInterrupt:
        print("interrupted; the same command goes on where this one stopped", file=sys.stderr)
        sys.exit(130)


@contextlib.contextmanager
def _no_callbacks() -> Generator[None, None, None]:
    """Keeps Hydra from running `hydra.callbacks`, which it does before it calls `_job`."""

    def refuse(node: Any, *_: Any, **__: Any) -> None:
        raise InputError(f"hydra.callbacks are not run: leave {node} out")

    hydra.utils.instantiate = refuse
    try:
        yield
    finally:
        hydra.utils.instantiate = instantiate


@hydra.main(version_base="1.3", config_path=config_dir(), config_name="config")
def _job(cfg: DictConfig) -> str | None:
    """One job; in a sweep, returns what went wrong, for another process may have to say it."""
    in_sweep = HydraConfig.get().mode == RunMode.MULTIRUN
    directory = None
    try:
        overrides = list(HydraConfig.get().overrides.task)  # resolves what stands in them
        directory = run_dir(cfg, overrides)
        limit_threads(HydraConfig.get().launcher)
        refuse_new_keys(overrides)
        summary = run_from_config(cfg, directory)
    except _MENDABLE as error:
        if not in_sweep:
            _exit(_message(error))
        return _failed(directory, f"{error}\n", _message(error))
    except Exception as error:  # a bug must not take the other jobs of a sweep with it
        message = f"{type(error).__name__}: {error}"
        failure = _failed(directory, traceback.format_exc(), message, "; the traceback is in ")
        if not in_sweep:
            sys.exit(2)
        return failure
    (directory / "error.log").unlink(missing_ok=True)
    print(_describe(summary))
    return None


def _failed(directory: Path | None, log: str, message: str, where: str = "") -> str:
    """Leaves `log` in the job's directory, and says `message`, after `where` the file's path."""
    if directory is None:  # no name for it
        where = ""
    else:
        try:
            directory.mkdir(parents=True, exist_ok=True)
            (directory / "error.log").write_text(log)
            where = where and f"{where}{directory}/error.log"
        except OSError:  # the disk may be what is wrong
            where = ""
    print(f"scope-torch: {message}{where}", file=sys.stderr)
    return f"{directory or 'a job without a directory'}: {message}{where}"


def limit_threads(launcher: DictConfig) -> None:
    """Makes a job use no more threads than the CPUs that its launcher asked for.

    Joblib and Ray set OMP_NUM_THREADS for their workers themselves, and what the user has set
    is left alone.
    """
    cpus = launcher.get("cpus_per_task")
    if cpus is not None and "OMP_NUM_THREADS" not in os.environ:
        import torch

        torch.set_num_threads(cpus)


def run_from_config(cfg: DictConfig, directory: Path) -> dict[str, Any]:
    """Runs what a config describes in `directory`, unless that was done before.

    Returns:
        The content of `result.json`.
    """
    if not 0 <= cfg.seed < 2**32:  # what all generators of random numbers take
        raise InputError(f"seed={cfg.seed} must be a whole number from 0 to {2**32 - 1}")
    if cfg.device is not None:
        check_device(cfg.device)

    tracker = build(cfg.tracking, run_dir=directory)

    def make_method(problem: SelectionProblem) -> Any:
        kernel = build(cfg.kernel)
        return build(cfg.method, problem=problem, kernel=kernel, seed=cfg.seed, device=cfg.device)

    # A wrong base LLM is found before a live task pays for its reference.
    task: Task = build(cfg.task, before_paying=make_method)
    try:
        method = make_method(task.problem)
        return _run_task(cfg, task, method, tracker, directory)
    finally:
        close_evaluator(task.evaluator)


def _run_task(
    cfg: DictConfig, task: Task, method: Any, tracker: Callback, directory: Path
) -> dict[str, Any]:
    settings = run_settings(task.problem, method, task.evaluator, cfg.budget_usd)
    summary = finished_summary(directory, settings)
    if summary is None:
        callbacks = [ProgressBar(), CurvePlot(), tracker, InterruptedSummary(directory)]
        gc.freeze()  # or the collector looks at what imports made again and again
        try:
            result = run(
                task.problem,
                method,
                task.evaluator,
                cfg.budget_usd,
                run_dir=directory,
                callbacks=callbacks,
            )
        finally:
            gc.unfreeze()
        summary = result.summary()
    if cfg.deploy:
        _deploy(task, summary["theta_out_codes"], directory / "deployment.json")
    return summary


def _deploy(task: Task, theta_out: list[int], path: Path) -> None:
    if path.exists():
        return
    if task.held_out is None:
        raise InputError(f"task {task.problem.name!r} has no held-out queries; say deploy=false")
    held_out = task.held_out()
    try:
        deployed = {
            "theta_out": deploy(held_out, theta_out),
            "reference": deploy(held_out, task.problem.theta_ref),
        }
    finally:
        close_evaluator(held_out.evaluator)
    write_atomically(path, json.dumps(deployed, indent=2) + "\n")


def close_evaluator(evaluator: Evaluator) -> None:
    """Ends the connections of an evaluator that has any."""
    if close := getattr(evaluator, "close", None):
        close()


def build(node: DictConfig, **extra: Any) -> Any:
    """The one place where a config's `_target_` becomes an object.

    Args:
        node: The config of the object.
        extra: Further arguments; those that the object does not take are left out.

    Raises:
        InputError: If the target is neither of this package nor allowed; see `check_target`.
    """
    check_target(str(node._target_))
    target = instantiate(node, _partial_=True, _recursive_=False, _convert_="all")
    accepted = inspect.signature(target).parameters
    return target(**{name: value for name, value in extra.items() if name in accepted})


def refuse_new_keys(overrides: list[str]) -> None:
    """Raises InputError for `+key=value`: a key that conf/schema.py does not have is not read."""
    for override in overrides:
        if override.startswith("+"):
            raise InputError(
                f"{override!r} would add a key; write it without + (see conf/schema.py)"
            )


def check_device(device: str) -> None:
    """Raises InputError if torch cannot use the device."""
    import torch

    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"device={device!r} cannot be used ({reason}); try device=cpu") from error


def run_dir(cfg: DictConfig, overrides: list[str]) -> Path:
    """output_dir/[experiment/]task/method/[other overrides/]seed=...: stable, to resume.

    Raises:
        InputError: If a name would lead elsewhere.
    """
    names = {"task": cfg.task.name, "method": cfg.method.name}
    if cfg.experiment:
        names["experiment"] = cfg.experiment
    for what, name in names.items():
        if re.search(r"[/\\\0]|^\.*$", str(name)):
            raise InputError(f"{what} {name!r} cannot name a folder; leave out / and \\")
    keys = {o: o.partition("=")[0].lstrip("+~") for o in overrides}
    other = [o for o, key in keys.items() if not _NOT_IN_PATH.fullmatch(key)]
    variant = re.sub(r"[^\w.=,+-]+", "_", ",".join(sorted(other)))[:150]
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


def _message(error: BaseException) -> str:
    shown = (
        [error]
        if error.__cause__ is None or isinstance(error, InputError)
        else [error, error.__cause__]
    )
    lines = [line.strip() for e in shown for line in str(e).splitlines()[:2] if line.strip()]
    if options := _OPTIONS.search(str(error)):
        lines.append("there are " + ", ".join(options[1].split()))
    if missing := _LAUNCHER.search(str(error)):
        lines.append(f"pip install 'scope-torch[{_EXTRA_OF_LAUNCHER[missing[1]]}]'")
    return "; ".join(lines) or type(error).__name__


def _describe(summary: dict[str, Any]) -> str:
    llms = ", ".join(f"{module}: {llm}" for module, llm in summary["theta_out"].items())
    relative = ""
    if summary["true_cost_usd"] is not None:
        ratio = summary["true_cost_usd"] / summary["reference_cost_usd"]
        verdict = "feasible" if summary["feasible"] else "NOT feasible"
        relative = f"\n  true cost {ratio:.1%} of the reference, {verdict}"
    basis = summary["basis"]
    if summary.get("certificate") == "sequence":
        basis += f" by its answers at delta={summary['delta']:g}" if basis == "certified" else ""
    elif "mode" in summary:
        basis += f", {summary['mode']} bounds"
    return (
        f"{summary['task']} {summary['method']} seed {summary['seed']}: {llms} ({basis})"
        f"\n  spent {summary['spend_usd']:.3g} USD on {summary['num_observations']} observations; "
        f"stopped: {summary['stop_reason']}{relative}\n  {summary['paths']['run_dir']}"
    )


if __name__ == "__main__":
    main()
