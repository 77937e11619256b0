# %% [markdown]
# # Reproducing the paper's figures, in small
#
# The paper's main figure shows two curves for every method against the search budget: the best
# feasible cost c_bf, and the violation V of the quality constraint. This page makes that figure for
# one simulated task, with two seeds and a part of the budget. The task has the shape of data
# imputation in the paper (three modules, 23 LLMs, 156 queries), and its costs and qualities were
# fitted to the paper's numbers. No LLM is called.

# %%
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt

from scope_torch import make_scope, run
from scope_torch.baselines.random_search import RandomSearch
from scope_torch.cli.report import report
from scope_torch.results.metrics import optimal_cost
from scope_torch.results.plotting import plot_curves
from scope_torch.runs.finished import column, load_runs
from scope_torch.tasks.simulated import simulated_task

task = simulated_task(name="data_imputation_simulated", world="data_imputation")
problem = task.problem
optimum = optimal_cost(problem, task.evaluator.truth())
print(f"{problem.space.size:,} configurations, {problem.num_queries} queries")
print(f"the best feasible one costs {optimum / problem.reference_cost_usd:.1%} of theta_0")

# %% [markdown]
# ## The runs
#
# Each method and seed gets a directory of its own, as with `scope-torch`. So runs can be resumed
# and reported.

# %%
BASE = "Gemini 2.5 Flash-Lite"
METHODS = {
    "scope": lambda seed: make_scope(problem, base=BASE, seed=seed),
    "scope_rand": lambda seed: make_scope(
        problem, initial_pool="random", seed=seed, name="scope_rand"
    ),
    "random": lambda seed: RandomSearch(problem, seed=seed),
}
BUDGET_USD = 0.75  # the paper: 2
outputs = Path(tempfile.mkdtemp())
for name, make in METHODS.items():
    for seed in range(2):
        run(
            problem,
            make(seed),
            task.evaluator,
            BUDGET_USD,
            run_dir=outputs / problem.name / name / f"seed={seed}",
        )

# %% [markdown]
# ## The report
#
# `report` writes a table, CSV files with all measures of each method and of each run, and the
# figure as PNG and PDF. The dashed curves are the paper's own. They were measured with real LLMs
# and end at 2 USD, so ours need not agree with them.

# %%
report(outputs)
print(*sorted(path.name for path in outputs.iterdir()), sep="\n")


def show(path: Path) -> None:
    """Shows a PNG file as it is."""
    picture = plt.imread(path)
    fig = plt.figure(figsize=(picture.shape[1] / 150, picture.shape[0] / 150), dpi=150)
    axes = fig.add_axes((0, 0, 1, 1))
    axes.imshow(picture)
    axes.axis("off")
    plt.show()


(figure,) = outputs.glob("*.png")
show(figure)

# %% [markdown]
# You can also read the runs from disk and draw the figure yourself, without the paper's curves:

# %%
groups, _ = load_runs(outputs)
for (_, method, _), runs in groups.items():
    costs = ", ".join(f"{cost:.1%}" for cost in column(runs, "cost_100"))
    violations = ", ".join(f"{violation:.2g}" for violation in column(runs, "violation"))
    print(f"{method:11} c_bf / c(theta_0) of each seed: {costs}; V: {violations}")

plot_curves(
    {method: [run.curve for run in runs] for (_, method, _), runs in groups.items()},
    BUDGET_USD,
    outputs / "by_hand.png",
    title="data imputation (simulated), two seeds",
    reference_cost_usd=problem.reference_cost_usd,
    optimal_cost_usd=optimum,
)
show(outputs / "by_hand.png")

# %% [markdown]
# ## The real thing
#
# Each figure of the paper is one command, with all methods, three seeds and the full budget; "Many
# runs at once" in the documentation lists them. An interrupted command continues where it stopped:
#
# ```
# scope-torch experiment=rq1_main
# scope-torch report outputs/rq1_main
# ```
