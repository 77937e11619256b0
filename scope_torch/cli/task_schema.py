"""The keys of tasks, and of the client that calls LLMs; see `scope_torch.cli.schema`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING


@dataclass
class TableTaskConfig:
    """A recorded table; see `scope_torch.tasks.table.table_task`."""

    _target_: str = "scope_torch.tasks.table.table_task"
    name: str = "table"  # shown in paths and plots
    path: str = ""  # CSV, JSON lines or Parquet; looked for here, in $SCOPE_DATA_DIR, ./data
    module_columns: list[str] = field(default_factory=list)  # columns naming each module's LLM
    reference: list[str] = field(default_factory=list)  # theta_0: one LLM for each module
    epsilon: float = 0.01  # tolerated relative loss of quality, in (0, 1)
    constraints: list[str] = field(default_factory=list)  # e.g. "latency_s <= 2 cap 10"
    objective: str = "cost"  # cost | quality (bound cost_usd) | pareto (method=scope_front)
    quality_column: str = "quality"  # in [0, 1]
    cost_column: str = "cost_usd"  # in USD
    query_column: str = "query"
    outcome_columns: list[str] = field(default_factory=list)  # other numbers, e.g. output_tokens
    on_missing: str = "error"  # error | drop_queries | restrict: search only what was recorded
    configurations: str | None = None  # restrict: JSON or CSV of the only ones that may be chosen
    num_queries: int | None = None  # search the first so many; null: all
    source: str = ""  # where to get the file
    max_bytes: int = 1_000_000_000  # largest size of the file, decompressed


@dataclass
class AveragesTaskConfig:
    """A recording with average costs; see `scope_torch.tasks.averages.averages_task`."""

    _target_: str = "scope_torch.tasks.averages.averages_task"
    name: str = MISSING  # shown in paths and plots
    path: str = MISSING  # a folder; looked for here, in $SCOPE_DATA_DIR, ./data
    reference: list[str] = MISSING  # theta_0: one LLM for each module
    epsilon: float = 0.01  # tolerated relative loss of quality, in (0, 1)
    constraints: list[str] = field(default_factory=list)  # e.g. "cost_usd <= 0.01 cap 0.1"
    objective: str = "cost"  # cost | quality (bound cost_usd) | pareto (method=scope_front)
    log_sd: list[float] = MISSING  # of the drawn costs over the queries: least and largest
    shared: float = MISSING  # correlation of their logarithms between configurations, in [0, 1]
    cost_seed: int = 0  # decides the draws
    source: str = ""  # where to get the folder


@dataclass
class MatrixTaskConfig:
    """Matrices of queries and configurations; see `scope_torch.tasks.matrix.matrix_task`."""

    _target_: str = "scope_torch.tasks.matrix.matrix_task"
    name: str = "matrix"  # shown in paths and plots
    quality_path: str = MISSING  # a row for each query, a column for each configuration; in [0, 1]
    cost_path: str = MISSING  # the same, in USD
    columns_path: str = MISSING  # JSON: {column: {module: LLM}}
    reference: list[str] = field(default_factory=list)  # theta_0: one LLM for each module
    epsilon: float = 0.01  # tolerated relative loss of quality, in (0, 1)
    constraints: list[str] = field(default_factory=list)  # e.g. "latency_s <= 2 cap 10"
    objective: str = "cost"  # cost | quality (bound cost_usd) | pareto (method=scope_front)
    outcome_paths: Any = None  # of other numbers, e.g. {latency_s: latency.csv}
    query_column: str = "query"
    on_missing: str = "error"  # error | drop_queries | restrict: search only what was recorded
    configurations: str | None = None  # restrict: JSON or CSV of the only ones that may be chosen
    num_queries: int | None = None  # search the first so many; null: all
    source: str = ""  # where to get the files
    max_bytes: int = 1_000_000_000  # largest size of a file, decompressed


@dataclass
class SyntheticTaskConfig:
    """A made-up table of runs; see `scope_torch.tasks.synthetic.synthetic_task`."""

    _target_: str = "scope_torch.tasks.synthetic.synthetic_task"
    name: str = "synthetic"
    num_modules: int = 2
    num_queries: int = 60
    world_seed: int = 3
    epsilon: float = 0.05
    constraints: list[str] = field(default_factory=list)  # e.g. "cost_usd <= 0.01 cap 0.1"
    objective: str = "cost"  # cost | quality (bound cost_usd) | pareto (method=scope_front)


@dataclass
class SimulatedTaskConfig:
    """A simulated compound system; see `scope_torch.tasks.simulated.simulated_task`."""

    _target_: str = "scope_torch.tasks.simulated.simulated_task"
    name: str = MISSING  # shown in paths and plots
    world: str = MISSING  # text_to_sql | data_transformation | data_imputation | entity_resolution
    family: str = "bottleneck"  # bottleneck | additive | recorded_like (docs/simulated.md)
    reference: str = "GPT-5.2"  # theta_0: this LLM in every module
    epsilon: float = 0.01
    constraints: list[str] = field(default_factory=list)  # e.g. "latency_s <= 2 cap 10"
    objective: str = "cost"  # cost | quality (bound cost_usd) | pareto (method=scope_front)
    world_seed: int = 0  # seed of the world: LLMs' skills, queries
    randomness: float = 0.0  # noise of an answer, in units of the margin; 0: deterministic LLMs
    cost_noise: float = 0.03  # relative spread of observed costs
    noise_seed: int = 0  # seed of the observations
    llms: list[str] | None = None  # candidates of every module; null: all that have a price
    world_file: str | None = None  # null: that of the family
    price_file: str | None = None  # null: llms.toml of the package
    outcomes: bool = False  # observations carry latency_s and output_tokens
    cache_dir: str | None = None  # true averages; null: $SCOPE_CACHE_DIR or ~/.cache/scope-torch


@dataclass
class CompoundTaskConfig:
    """A compound system on real data; see `scope_torch.tasks.live.compound_task`."""

    _target_: str = "scope_torch.tasks.live.compound_task"
    name: str = MISSING  # shown in paths and plots
    dataset: str = MISSING  # airport_city | restaurant | tde | amazon_google | febrl | bird
    reference: list[str] = field(default_factory=list)  # theta_0: an LLM for each module, or one
    epsilon: float = 0.01  # tolerated relative loss of quality, in (0, 1)
    constraints: list[str] = field(default_factory=list)  # e.g. "latency_s <= 2 cap 10"
    objective: str = "cost"  # cost | quality (bound cost_usd) | pareto (method=scope_front)
    evaluator: str = "${evaluator}"
    llm: Any = "${llm}"
    llms: list[str] | None = None  # candidates of every module; null: all that have a price
    price_file: str | None = None  # null: llms.toml of the package
    table: str | None = None  # recorded runs, for evaluator=recorded
    num_queries: int | None = None  # search the first so many; null: all
    reference_quality: float | None = None  # s(theta_0); null: measured first
    reference_cost_usd: float | None = None  # c(theta_0); null: measured first
    data: dict[str, Any] = field(default_factory=dict)  # arguments of the data set's loader
    system: dict[str, Any] = field(default_factory=dict)  # arguments of the system


@dataclass
class DescriptionConfig:
    """What the prompts of LLAMBO say of a task (the paper's appendix, adaptation details)."""

    system: str = ""  # what the compound system does; empty: the task's name
    dataset: str = ""  # what its queries are, and when an answer is right; empty: the task's name


@dataclass
class LLMConfig:
    """How a live task calls LLMs; see `scope_torch.llm.retrying.RetryingClient`."""

    base_url: str | None = None  # OpenAI-compatible, such as http://localhost:8000/v1
    api_key_env: str | None = "OPENAI_API_KEY"  # variable that holds the key; null: no key
    store: str = "responses.sqlite"  # keeps every reply, so that none is paid for twice
    concurrency: int = 8  # calls, and queries, in flight
    timeout_s: float = 60.0
    retries: int = 4
    backoff_s: float = 1.0  # first wait before a retry; doubles
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    max_failures_in_a_row: int = 50  # stop the run after so many; it can be resumed
    extra_body: dict[str, Any] = field(default_factory=dict)  # sent with every request
