"""Every key of the command line, with its type, default and meaning; others are refused."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING

from scope_torch.cli.task_schema import DescriptionConfig, LLMConfig
from scope_torch.options import DEFAULTS


@dataclass
class BoundsConfig:
    """Confidence bounds; see `scope_torch.bounds`."""

    mode: str = "tuned"  # tuned | theory
    gain: str = "maximum"  # theory: maximum (the paper) | realised, never wider
    b_g: Any = "loo_widening"  # tuned: in units of quality, or eligible | loo | loo_widening
    b_c: Any = "reference_fraction"  # tuned: a half-width in USD, or loo | reference_fraction
    reference_fraction: float = 1 / 30  # of c(theta_0)
    R_c: float = 1e-3  # theory: sub-Gaussian constant of cost, in cost units
    R_g: float = 1e-3  # theory: sub-Gaussian constant of quality
    B_c: float = 1.0  # theory: RKHS norm of cost, in cost units
    B_g: Any = 1.0  # theory: RKHS norm of quality, or eligible, as the paper tunes it
    delta: float = 1e-4  # theory, sequence and population: failure probability
    cost_unit: float | None = None  # theory: USD; null for c(theta_0)


@dataclass
class JointBoundsConfig:
    """Bounds of the joint surrogate; see `scope_torch.methods.make_scope_joint`."""

    mode: str = "credible"  # credible | theory, which needs rho
    b: float = 3.0  # credible: half-width in standard deviations, to choose and to stop
    b_certify: float = 4.0  # credible: half-width of U_g with certificate=bounds
    widenings: int | None = None  # how often b grows by half; null: as often as it pays
    R_c: float = 1e-3  # theory: sub-Gaussian constant of cost, in cost units
    R_g: float = 1e-3  # theory: sub-Gaussian constant of quality
    B_c: float = 1.0  # theory: norm of cost in the joint RKHS, in cost units
    B_g: float = 1.0  # theory: norm of quality in the joint RKHS
    delta: float = 0.05  # theory, sequence and population: failure probability
    cost_unit: float | None = None  # theory: USD; null for c(theta_0)


@dataclass
class SharedConfig:
    """Keys of `scope`, `scope_joint` and `scope_front`; they are those of `scope_torch.options`."""

    base: Any = "${base}"
    initial_pool: str = DEFAULTS["initial_pool"]
    batch_size: int | None = DEFAULTS["batch_size"]
    in_flight: int = DEFAULTS["in_flight"]


@dataclass
class SearchConfig(SharedConfig):
    """Keys of `scope` and `scope_joint`; they are those of `scope_torch.options`."""

    prune: bool = DEFAULTS["prune"]
    gap_tolerance: float | None = DEFAULTS["gap_tolerance"]
    space_search: str = DEFAULTS["space_search"]
    surrogate: str = DEFAULTS["surrogate"]
    certificate_flips: Any = DEFAULTS["certificate_flips"]
    reference_repeats: list[int] | None = None
    query_pool: int | None = DEFAULTS["query_pool"]


@dataclass
class ScopeConfig(SearchConfig):
    """SCOPE and its variants; see `scope_torch.methods.make_scope`."""

    _target_: str = "scope_torch.methods.make_scope"
    name: str = "scope"
    bounds: BoundsConfig = field(default_factory=BoundsConfig)
    alpha: float = 1 / 3  # in (0, 1/2)
    lam: float | None = None  # null: max{R_c^2, R_g^2, 1e-9}
    u_out_floor: bool = True  # u_out begins at c(theta_0) at least; false: the paper
    max_nodes: int = 100_000  # branch_and_bound: most prefixes visited to find a minimum
    certificate: str = "bounds"  # bounds: U_g <= 0 | sequence: by answers | population: tomorrow's


@dataclass
class ScopeJointConfig(SearchConfig):
    """SCOPE with the joint surrogate; see `scope_torch.methods.make_scope_joint`."""

    _target_: str = "scope_torch.methods.make_scope_joint"
    name: str = "scope_joint"
    bounds: JointBoundsConfig = field(default_factory=JointBoundsConfig)
    rho: float | None = None  # share of the variance common to all queries; null: fitted
    amplitude: float | None = None  # prior standard deviation; null: fitted
    relative_cost: bool | None = None  # divide costs by a sum over modules; null: if credible
    lam: float | None = None  # noise variance of an answer, relative to w_q's; null: 1e-6
    max_nodes: int = 20_000  # branch_and_bound: most prefixes visited to find a minimum
    certificate: str | None = None  # as scope's; null: sequence, or bounds if mode is theory
    learn_reference: bool = False  # whether the model takes in the answers of theta_0
    calibration_queries: int | None = 4  # of Calibrate, more if few are right; null: all
    verify: int = 1  # rounds in which the model is tried before the search stops; 0: none
    cost_scale: str = "regression"  # costs by module: regression | least_squares, as in 0.1.0
    call_usd: float = 0.0  # what waiting for a call costs, in USD, when the search asks if it pays


@dataclass
class ScopeFrontConfig(SharedConfig):
    """The search for the whole front; see `scope_torch.front_method.make_scope_front`."""

    _target_: str = "scope_torch.front_method.make_scope_front"
    name: str = "scope_front"
    b: float = 3.0  # half-width of the optimistic corner in standard deviations
    widenings: int = 1  # how often b grows by half, once nothing can improve the front
    rule: str = "area"  # what is largest for each USD: area added to the front | chance of any
    rho: float | None = None  # share of the variance common to all queries; null: fitted
    amplitude: float | None = None  # prior standard deviation; null: fitted
    lam: float = 1e-6  # noise variance of an answer, relative to w_q's


@dataclass
class RandomSearchConfig:
    """Random search; see `scope_torch.baselines.random_search.RandomSearch`."""

    _target_: str = "scope_torch.baselines.random_search.RandomSearch"
    name: str = "random_search"


@dataclass
class GPConfig:
    """Model and first data of dataset-level methods; see `scope_torch.baselines.gp.GPSettings`."""

    lam: float = 1e-6  # relative to amp^2
    units: str = "relative"  # relative: z_c = c / c(theta_0), z_g = g / s_0 | raw
    amp_c: float = 1.0  # prior standard deviation of z_c; config_bo: 0.2
    amp_g: float = 1.0  # prior standard deviation of z_g; config_bo: 0.15, safeopt: 0.003
    theta0_obs: str = "free"  # theta_0 as an observation: free | charged | none
    n_init: int = 0  # configurations evaluated before the first choice


@dataclass
class CEIConfig:
    """Constrained expected improvement; see `scope_torch.baselines.cei.CEI`."""

    _target_: str = "scope_torch.baselines.cei.CEI"
    name: str = "cei"
    gp: GPConfig = field(default_factory=GPConfig)
    incumbent: str = "observed"  # f+: observed | posterior_mean
    stop_below: float = 0.0  # stop if max EI PoF is lower; 0: never
    mask_repeats: bool = False


@dataclass
class ConfigBOConfig:
    """CONFIG; see `scope_torch.baselines.config_bo.CONFIG`."""

    _target_: str = "scope_torch.baselines.config_bo.CONFIG"
    name: str = "config_bo"
    gp: GPConfig = field(default_factory=lambda: GPConfig(amp_c=0.2, amp_g=0.15))
    beta: Any = 3.0  # a constant, or theory
    B_c: float = 1.0  # theory: RKHS norm of z_c / amp_c
    B_g: float = 1.0  # theory: RKHS norm of z_g / amp_g
    R_c: float = 1e-3  # theory: sub-Gaussian constant of z_c / amp_c
    R_g: float = 1e-3  # theory: sub-Gaussian constant of z_g / amp_g
    delta: float = 1e-4  # theory: failure probability
    incumbent: str = "bof"  # theta_out: bof (best observed feasible) | last_queried


@dataclass
class SafeOptConfig:
    """SafeOpt; see `scope_torch.baselines.safeopt.SafeOpt`."""

    _target_: str = "scope_torch.baselines.safeopt.SafeOpt"
    name: str = "safeopt"
    gp: GPConfig = field(default_factory=lambda: GPConfig(amp_g=0.003))
    beta: float = 2.0  # half-width of the intervals in sigma
    tau: float = 0.1  # least uncertainty of an expander
    lipschitz: float | None = None  # z_g per unit of sqrt(Hamming distance); null: not used


@dataclass
class OptunaGPConfig:
    """Optuna's GPSampler, of the extra `peers`; see `scope_torch.baselines.optuna_gp.OptunaGP`."""

    _target_: str = "scope_torch.baselines.optuna_gp.OptunaGP"
    name: str = "optuna_gp"
    n_startup_trials: int = 10
    theta0_obs: str = "free"  # theta_0 as a trial: free | charged | none


@dataclass
class LLMSelectorConfig:
    """LLMSelector; see `scope_torch.baselines.llmselector.LLMSelector`."""

    _target_: str = "scope_torch.baselines.llmselector.LLMSelector"
    name: str = "llmselector"


@dataclass
class AbacusConfig:
    """Abacus; see `scope_torch.baselines.abacus.Abacus`."""

    _target_: str = "scope_torch.baselines.abacus.Abacus"
    name: str = "abacus"
    k: int = 6  # most LLMs of a module under measurement
    j: int = 4  # queries in the first measurement of an LLM
    step: int = 1  # queries in each later one
    module_cost: str = "metered"  # metered (if the system logs it) | difference
    reuse_base: bool = False  # reuse runs of the base instead of repeating them
    remeasure_base: bool = True  # measure the base again, against theta_0


@dataclass
class LLMBackendConfig:
    """LLAMBO's own LLM; see `scope_torch.baselines.llm_backends.BackendConfig`."""

    kind: str = "stub"  # stub (offline, no LLM) | openai (any compatible server) | replay
    model: str = "gpt-5.2"
    base_url: str = "https://api.openai.com/v1"
    api_key_env: str | None = "OPENAI_API_KEY"  # variable that holds the key; null: no key
    transcript: str | None = None  # file of all replies; with null, openai cannot resume
    token_parameter: str = "max_completion_tokens"  # or max_tokens, for older LLMs
    min_tokens: int = 4096  # lowest limit of a reply: reasoning counts too
    sampling: bool = False  # whether the LLM takes temperature and top_p
    top_p: float = 0.95
    multiple: bool = True  # whether one request asks for several replies
    price_input: float | None = None  # USD per million prompt tokens
    price_output: float | None = None  # USD per million completion tokens
    timeout_s: float = 120.0
    retries: int = 4
    backoff_s: float = 1.0  # first wait before a retry; doubles
    malformed: float = 0.03  # stub: share of unreadable replies


@dataclass
class LLAMBOConfig:
    """LLAMBO; see `scope_torch.baselines.llambo.make_llambo`."""

    _target_: str = "scope_torch.baselines.llambo.make_llambo"
    name: str = "${llambo_name:${.backend.kind}}"
    backend: LLMBackendConfig = field(default_factory=LLMBackendConfig)
    system: str = "${llambo_text:${.backend.kind},${description.system}}"  # stub: empty
    dataset: str = "${llambo_text:${.backend.kind},${description.dataset}}"  # stub: empty
    prices: dict[str, list[float]] | None = None  # llm: [in, out], USD per 1e6; null: llms.toml
    n_init: int = 5  # configurations asked for at the start
    num_candidates: int = 10  # in each iteration
    min_candidates: int = 5  # if fewer are new: ask again, then fill up at random
    num_retries: int = 3
    num_templates: int = 2  # orders of the history lines per request
    num_predictions: int = 10  # per candidate and order
    alpha: float = 0.1  # ask for a cost this share of the range below the best


@dataclass
class KernelConfig:
    """A gpytorch kernel on configurations."""

    _target_: str = MISSING


@dataclass
class TrackingConfig:
    """A callback beside the journal and the trace, which every run writes."""

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
class TensorBoardConfig(TrackingConfig):
    """TensorBoard, of the extra `tensorboard`; see `scope_torch.tracking.tensorboard`."""

    _target_: str = "scope_torch.tracking.tensorboard.TensorBoardTracker"


@dataclass
class MlflowConfig(TrackingConfig):
    """MLflow, of the extra `mlflow`; see `scope_torch.tracking.mlflow`."""

    _target_: str = "scope_torch.tracking.mlflow.MlflowTracker"
    uri: str = ""  # such as http://localhost:5000; default: the file output_dir/mlflow.db
    experiment: str = ""  # default: the task's name
    directory: str = MISSING  # folder of mlflow.db and of the artifacts, without uri


@dataclass
class Config:
    """One run."""

    task: Any = MISSING
    method: Any = MISSING
    kernel: KernelConfig = MISSING
    tracking: Any = MISSING
    budget_usd: float = MISSING  # Lambda
    time_limit: Any = None  # no further call then: 2h, 1h30min, seconds; null: no limit
    deployment_queries: float | None = None  # H: queries to be answered; null: by the budget
    base: Any = None  # a cheap LLM, or one for each module; usually set by the task
    description: DescriptionConfig = field(default_factory=DescriptionConfig)  # set by the task
    evaluator: str = "live"  # of compound systems: live | recorded
    llm: LLMConfig = field(default_factory=LLMConfig)
    seed: int = 0
    device: str | None = None  # null or auto: CUDA if present and Theta is large
    deploy: bool = False  # afterwards evaluate theta_out and theta_0 on held-out queries (RQ2)
    continue_from: Any = None  # folders of older runs, whose observations are known
    experiment: str = ""  # a folder of output_dir, and the group in W&B; default: the task's name
    output_dir: str = "outputs"  # runs: output_dir[/experiment]/task/method[/overrides]/seed=...
    swept: list[str] = field(default_factory=list)  # by -m: keys that its jobs differ in
