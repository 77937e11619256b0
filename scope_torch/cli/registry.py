"""Tells Hydra the schemas, and where the YAML files are."""

from __future__ import annotations

from pathlib import Path

from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

from scope_torch.cli.schema import (
    AbacusConfig,
    CEIConfig,
    Config,
    ConfigBOConfig,
    KernelConfig,
    LLAMBOConfig,
    LLMSelectorConfig,
    MlflowConfig,
    OptunaGPConfig,
    RandomSearchConfig,
    SafeOptConfig,
    ScopeConfig,
    ScopeFrontConfig,
    ScopeJointConfig,
    TensorBoardConfig,
    TrackingConfig,
    WandbConfig,
)
from scope_torch.cli.task_schema import (
    AveragesTaskConfig,
    CompoundTaskConfig,
    MatrixTaskConfig,
    SimulatedTaskConfig,
    SyntheticTaskConfig,
    TableTaskConfig,
)
from scope_torch.cli.trusted import refuse_untrusted_configs


def config_dir() -> str:
    """The folder of the YAML files: in this package if installed, else the repository's conf/.

    The path is absolute, because a module name such as `conf` could name a package of the user's.
    """
    package = Path(__file__).resolve().parents[1]
    return str((package if (package / "conf").is_dir() else package.parent) / "conf")


def register() -> None:
    """Tells Hydra the schemas, in a group of their own, so that `method=glob(*)` finds none."""
    refuse_untrusted_configs()
    OmegaConf.register_new_resolver("llambo_name", _llambo_name, replace=True)
    OmegaConf.register_new_resolver("llambo_text", _llambo_text, replace=True)
    store = ConfigStore.instance()
    store.store(name="config_schema", node=Config)
    store.store(group="schema/task", name="table", node=TableTaskConfig)
    store.store(group="schema/task", name="averages", node=AveragesTaskConfig)
    store.store(group="schema/task", name="matrix", node=MatrixTaskConfig)
    store.store(group="schema/task", name="synthetic", node=SyntheticTaskConfig)
    store.store(group="schema/task", name="simulated", node=SimulatedTaskConfig)
    store.store(group="schema/task", name="compound", node=CompoundTaskConfig)
    store.store(group="schema/method", name="scope", node=ScopeConfig)
    store.store(group="schema/method", name="scope_joint", node=ScopeJointConfig)
    store.store(group="schema/method", name="scope_front", node=ScopeFrontConfig)
    store.store(group="schema/method", name="random_search", node=RandomSearchConfig)
    store.store(group="schema/method", name="cei", node=CEIConfig)
    store.store(group="schema/method", name="config_bo", node=ConfigBOConfig)
    store.store(group="schema/method", name="safeopt", node=SafeOptConfig)
    store.store(group="schema/method", name="optuna_gp", node=OptunaGPConfig)
    store.store(group="schema/method", name="llmselector", node=LLMSelectorConfig)
    store.store(group="schema/method", name="abacus", node=AbacusConfig)
    store.store(group="schema/method", name="llambo", node=LLAMBOConfig)
    store.store(group="schema/kernel", name="base", node=KernelConfig)
    store.store(group="schema/tracking", name="base", node=TrackingConfig)
    store.store(group="schema/tracking", name="wandb", node=WandbConfig)
    store.store(group="schema/tracking", name="tensorboard", node=TensorBoardConfig)
    store.store(group="schema/tracking", name="mlflow", node=MlflowConfig)


def _llambo_name(kind: str) -> str:
    from scope_torch.baselines.llambo import method_name  # torch is slow to import

    return method_name(kind)


def _llambo_text(kind: str, text: str) -> str:
    """A description for the prompts. The stand-in reads none, and its replies are drawn by the
    text of the prompt: without one, its runs stay what they were.
    """
    return "" if kind == "stub" else text
