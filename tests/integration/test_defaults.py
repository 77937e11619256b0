"""A default written twice, in the schema of a config and in what it builds, is the same default."""

import dataclasses
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hydra.utils import get_object
from omegaconf import MISSING
from tables import make_task

from scope_torch.baselines.gp import GPSettings
from scope_torch.baselines.llambo import LLAMBO
from scope_torch.baselines.llm_backends import BackendConfig
from scope_torch.bounds import CredibleBounds, TheoryBounds, TunedBounds
from scope_torch.cli import schema, task_schema
from scope_torch.front_method import make_scope_front
from scope_torch.llm.client import OpenAIClient
from scope_torch.methods import make_scope, make_scope_joint
from scope_torch.options import DEFAULTS, SearchOptions, arguments_of

NESTED = {
    schema.BoundsConfig: [TunedBounds, TheoryBounds],
    schema.JointBoundsConfig: [CredibleBounds, TheoryBounds],
    schema.GPConfig: [GPSettings],
    schema.LLMBackendConfig: [BackendConfig],
    task_schema.LLMConfig: [OpenAIClient],
}
REST = {
    "scope_torch.baselines.llambo.make_llambo": LLAMBO
}  # takes the arguments that the target passes on
REQUIRED = "a user of Python has to give it"
FROM_RUN = "the command line takes it from elsewhere in the config"
SPECIAL = {
    ("TableTaskConfig", "name"): REQUIRED,
    ("TableTaskConfig", "path"): REQUIRED,
    ("TableTaskConfig", "module_columns"): REQUIRED,
    ("TableTaskConfig", "reference"): REQUIRED,
    ("TableTaskConfig", "epsilon"): REQUIRED,
    ("MatrixTaskConfig", "name"): REQUIRED,
    ("MatrixTaskConfig", "reference"): REQUIRED,
    ("MatrixTaskConfig", "epsilon"): REQUIRED,
    ("CompoundTaskConfig", "reference"): REQUIRED,
    ("CompoundTaskConfig", "epsilon"): REQUIRED,
    **{
        (f"{task}TaskConfig", key): "of the problem; see with_constraints"
        for task in ("Table", "Averages", "Matrix", "Synthetic", "Simulated", "Compound")
        for key in ("constraints", "objective")
    },
    ("CompoundTaskConfig", "evaluator"): FROM_RUN,
    ("CompoundTaskConfig", "llm"): FROM_RUN,
    ("ScopeConfig", "base"): FROM_RUN,
    ("ScopeJointConfig", "base"): FROM_RUN,
    ("ScopeFrontConfig", "base"): FROM_RUN,
    ("LLAMBOConfig", "name"): "follows the backend in both, see test_llambo",
    ("LLAMBOConfig", "system"): "of the task, see test_llambo",
    ("LLAMBOConfig", "dataset"): "of the task, see test_llambo",
    ("BoundsConfig", "mode"): "see test_bounds_left_out",
    ("BoundsConfig", "gain"): "see test_bounds_left_out",
    ("JointBoundsConfig", "mode"): "see test_bounds_left_out",
    ("JointBoundsConfig", "widenings"): "by make_scope_joint, see test_payoff",
    ("JointBoundsConfig", "delta"): "0.05, which make_scope_joint says; see test_bounds_left_out",
    ("LLMConfig", "api_key_env"): "endpoints called from Python may have no key",
    ("LLMConfig", "store"): "from Python a store is an object of its own",
    ("LLMConfig", "concurrency"): "of queries as well on the command line",
}


def schemas() -> dict[type, list[Callable[..., Any]]]:
    """Every schema that builds something, and the callables whose arguments its keys are."""
    found = dict(NESTED)
    for cls in (vars(schema) | vars(task_schema)).values():
        if dataclasses.is_dataclass(cls) and "_target_" in cls.__dataclass_fields__:
            target = cls.__dataclass_fields__["_target_"].default
            if target != MISSING:
                found[cls] = [get_object(target), *([REST[target]] if target in REST else [])]
    return found


def defaults_of(cls: type) -> dict[str, Any]:
    """The keys of a schema that have a default, without those that have a schema of their own."""
    values = {}
    for field in dataclasses.fields(cls):
        made = field.default_factory is not dataclasses.MISSING
        value = field.default_factory() if made else field.default
        if field.name != "_target_" and value != MISSING and type(value) not in NESTED:
            values[field.name] = value
    return values


def differences(cls: type, built: list[Callable[..., Any]]) -> set[tuple[str, str]]:
    """Keys whose default in the schema is not that of every callable that takes them."""
    signatures = [of_arguments(one) for one in built]
    differing = set()
    for name, value in defaults_of(cls).items():
        theirs = [known[name] for known in signatures if name in known]
        if not theirs or any(not same(value, default) for default in theirs):
            differing.add((cls.__name__, name))
    return differing


def of_arguments(function: Callable[..., Any]) -> dict[str, Any]:
    """The defaults of a callable, with those of the options that it shares with others."""
    parameters = inspect.signature(function).parameters
    shared = {name: DEFAULTS[name] for name in arguments_of(function) - set(parameters)}
    return {name: one.default for name, one in parameters.items()} | shared


def same(value: Any, default: Any) -> bool:
    """Equal; a collection that is empty in the schema may be None or another empty one."""
    return value == default or (value in ([], {}) and default in (None, ()))


SCHEMAS = schemas()


@pytest.mark.parametrize("cls", SCHEMAS, ids=lambda cls: cls.__name__)
def test_defaults_of_a_schema_are_those_of_the_constructor(cls):
    special = {pair for pair in SPECIAL if pair[0] == cls.__name__}
    assert differences(cls, SCHEMAS[cls]) == special


def test_the_schemas_are_found():
    assert len(SCHEMAS) >= 20
    assert {name for name, _ in SPECIAL} <= {cls.__name__ for cls in SCHEMAS}


def test_an_option_that_does_not_exist_is_refused_as_by_python():
    task = make_task()
    with pytest.raises(TypeError, match=r"make_scope\(\) got an unexpected .* 'prnue'"):
        make_scope(task.problem, prnue=False)
    front = {"base": "small", "prune": True}
    with pytest.raises(TypeError, match=r"make_scope_front\(\) got an unexpected .* 'prune'"):
        make_scope_front(task.problem, **front)


def test_every_shared_option_has_a_default_and_a_meaning(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "docs")
    from config_keys import meanings

    assert SearchOptions.__annotations__.keys() == DEFAULTS.keys() == meanings().keys()
    assert arguments_of(make_scope) > DEFAULTS.keys()
    shared = {field.name for field in dataclasses.fields(schema.SearchConfig)}
    assert DEFAULTS.keys() - shared == {"seed", "kernel", "device", "known", "rules"}


def test_a_difference_is_found():
    @dataclasses.dataclass
    class Other:
        alpha: float = 0.25
        prune: bool = True
        typo: int = 1

    assert differences(Other, [make_scope]) == {("Other", "alpha"), ("Other", "typo")}


@pytest.mark.parametrize(
    ("make", "config"),
    [(make_scope, schema.BoundsConfig), (make_scope_joint, schema.JointBoundsConfig)],
)
@pytest.mark.parametrize("more", [{}, {"mode": "theory"}])
def test_bounds_left_out_are_those_of_the_schema(make, config, more):
    """Their keys are in no signature: `make_scope` takes them as a mapping."""
    task = make_task(1, (3, 3), 6)
    arguments = {"base": "llm0", "device": "cpu", "seed": 0}
    arguments |= {"rho": 0.5} if make is make_scope_joint and more else {}
    written = make(task.problem, bounds={**dataclasses.asdict(config()), **more}, **arguments)
    left_out = make(task.problem, bounds=more or None, **arguments)
    assert written.settings() == left_out.settings()
    assert written.settings() != make(task.problem, **arguments | {"seed": 1}).settings()
