"""Structured configs: every key is typed and documented, an unknown key is refused."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING


@dataclass
class TableTaskConfig:
    """A recorded table; see `scope_torch.tasks.table.table_task`."""

    _target_: str = "scope_torch.tasks.table.table_task"
    name: str = "table"  # shown in paths and plots
    path: str = ""  # CSV or Parquet; relative: here, in $SCOPE_DATA_DIR, in ./data
    module_columns: list[str] = field(default_factory=list)  # columns naming each module's LLM
    reference: list[str] = field(default_factory=list)  # theta_0: one LLM for each module
    epsilon: float = 0.01  # tolerated relative loss of quality, in (0, 1)
    quality_column: str = "quality"  # in [0, 1]
    cost_column: str = "cost_usd"  # in USD
    query_column: str = "query"
    on_missing: str = "error"  # error | drop_queries
    source: str = ""  # where to get the file


@dataclass
class SyntheticTaskConfig:
    """Made-up runs; see `scope_torch.tasks.synthetic.synthetic_task`."""

    _target_: str = "scope_torch.tasks.synthetic.synthetic_task"
    name: str = "synthetic"
    num_modules: int = 2
    num_queries: int = 60
    world_seed: int = 3
    epsilon: float = 0.05


@dataclass
class BoundsConfig:
    """Confidence bounds; see `scope_torch.bounds`."""

    mode: str = "tuned"  # tuned | theory
    b_g: Any = "eligible"  # tuned: a half-width in units of quality, or eligible | loo
    b_c: Any = "loo"  # tuned: a half-width in USD, or loo | reference_fraction
    reference_fraction: float = 1 / 30  # of c(theta_0)
    R_c: float = 1e-3  # theory: sub-Gaussian constant of cost, in cost units
    R_g: float = 1e-3  # theory: the same of quality
    B_c: float = 1.0  # theory: RKHS norm of cost, in cost units
    B_g: float = 1.0  # theory: the same of quality
    delta: float = 1e-4  # theory: failure probability
    cost_unit: float | None = None  # theory: USD; null for c(theta_0)


@dataclass
class ScopeConfig:
    """SCOPE and its variants; see `scope_torch.methods.make_scope`."""

    _target_: str = "scope_torch.methods.make_scope"
    name: str = "scope"
    base: str | None = "${base}"  # theta_base, a cheap LLM
    bounds: BoundsConfig = field(default_factory=BoundsConfig)
    initial_pool: str = "base"  # base | random | none
    prune: bool = True
    alpha: float = 1 / 3  # in (0, 1/2)
    lam: float | None = None  # null: max{R_c^2, R_g^2, 1e-9}
    batch_size: int | None = 1  # queries in flight in the j-loop; null: all
    gap_tolerance: float = 0.0  # relative to u_out; 0: spend the whole budget


@dataclass
class RandomSearchConfig:
    """Random search; see `baselines.random_search.RandomSearch`."""

    _target_: str = "baselines.random_search.RandomSearch"
    name: str = "random"


@dataclass
class KernelConfig:
    """A gpytorch kernel on configurations."""

    _target_: str = MISSING


@dataclass
class TrackingConfig:
    """A callback besides the journal and the trace, which are always written."""

    _target_: str = MISSING


@dataclass
class WandbConfig(TrackingConfig):
    """Weights & Biases; see `scope_torch.tracking.wandb.WandbTracker`."""

    _target_: str = "scope_torch.tracking.wandb.WandbTracker"
    project: str = "scope-torch"
    entity: str | None = None
    mode: str = "offline"  # offline | online | disabled
    group: str = MISSING
    tags: list[str] = field(default_factory=list)
    directory: str = MISSING


@dataclass
class Config:
    """One run."""

    task: Any = MISSING
    method: Any = MISSING
    kernel: KernelConfig = MISSING
    tracking: TrackingConfig = MISSING
    budget_usd: float = MISSING  # Lambda
    base: str | None = None  # a cheap LLM; usually set by the task
    seed: int = 0
    device: str | None = None  # null: CUDA if present
    experiment: str = ""  # groups runs in W&B; default: the task's name
    output_dir: str = "outputs"  # runs go to output_dir/task/method[/overrides]/seed=...


def register() -> None:
    """Makes the schemas known to Hydra."""
    store = ConfigStore.instance()
    store.store(name="config_schema", node=Config)
    store.store(group="task", name="table_schema", node=TableTaskConfig)
    store.store(group="task", name="synthetic_schema", node=SyntheticTaskConfig)
    store.store(group="method", name="scope_schema", node=ScopeConfig)
    store.store(group="method", name="random_search_schema", node=RandomSearchConfig)
    store.store(group="kernel", name="kernel_schema", node=KernelConfig)
    store.store(group="tracking", name="tracking_schema", node=TrackingConfig)
    store.store(group="tracking", name="wandb_schema", node=WandbConfig)
