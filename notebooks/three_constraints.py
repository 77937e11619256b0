# %% [markdown]
# # Three constraints, and the best quality for a price
#
# A system of two modules was recorded on HotpotQA: a planner and a solver, nine LLMs each, with
# tokens beside quality and cost. Which pair is the cheapest that keeps 90% of the reference's
# quality *and* writes at most 100 tokens *and* reads at most 3,450?
#
# Without the recorded table (`SCOPE_DATA_DIR` says where it is) a simulated system takes its place,
# with other constraints.

# %%
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from scope_torch import InputError, make_scope_joint, run
from scope_torch.tasks.constrained import with_constraints
from scope_torch.tasks.files import find_data
from scope_torch.tasks.simulated import simulated_task
from scope_torch.tasks.table import table_task

try:
    find_data("agentopt/hotpotqa_compact.csv.gz")
    task = table_task(
        name="hotpotqa",
        path="agentopt/hotpotqa_compact.csv.gz",
        module_columns=["planner", "solver"],
        quality_column="score",
        outcome_columns=["output_tokens", "input_tokens"],
        reference=["Ministral 3 8B", "Claude Opus 4.6"],
        epsilon=0.1,
        on_missing="drop_queries",
    )
    texts = ["output_tokens <= 100 cap 2000", "input_tokens <= 3450 cap 20000"]
    base, budget = "gpt-oss-20b", 12.0
except InputError:
    task = simulated_task(name="imputation", world="data_imputation", outcomes=True)
    texts = ["latency_s <= 0.48 * reference cap 60", "output_tokens <= 1.5 * reference cap 9000"]
    base, budget = "Gemini 2.5 Flash-Lite", 1.0

# %% [markdown]
# A constraint has a cap: more tokens than that count as the cap, because a certificate needs
# outcomes from a range. Everything below is about averages of min(tokens, cap).

# %%
three = with_constraints(task, texts)
for limit in three.problem.limits:
    print(limit)

# %% [markdown]
# ## One constraint, and three

# %%
results = {}
for name, one in {"quality alone": task, "all three": three}.items():
    search = make_scope_joint(one.problem, base=base, seed=0, device="cpu")
    results[name] = result = run(one.problem, search, one.evaluator, budget)
    s = result.summary()
    print(f"{name}: {' + '.join(result.choice.values())} ({s['basis']}), "
          f"{s['true_cost_usd'] / s['reference_cost_usd']:.1%} of the reference's cost, "
          f"quality {s['true_quality']:.3f}, spent {s['spend_usd']:.2f} USD")  # fmt: skip
print("satisfies all three:", results["all three"].summary()["feasible"])

# %% [markdown]
# The truth is known here, so we can draw all configurations. The search did not see this picture:
# it paid for the configurations that it looked at, query by query.

# %%
cost, quality = (values.numpy() for values in task.evaluator.truth())
first, second = (values.numpy() for values in three.evaluator.true_outcomes(three.problem.others))
limits = three.problem.others
good = quality >= task.problem.s_0
held = (first <= limits[0].value) & (second <= limits[1].value)

figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
for mask, color, label in [
    (~good, "0.85", "quality too low"),
    (good & ~held, "tab:orange", "quality alone"),
    (good & held, "tab:blue", "all three hold"),
]:
    axes.scatter(cost[mask] * 1000, first[mask], s=14, color=color, label=label)
for name, marker in {"quality alone": "s", "all three": "*"}.items():
    at = task.problem.space.index_of(results[name].recommendation.theta)
    axes.scatter(cost[at] * 1000, first[at], s=130, marker=marker, facecolors="none",
                 edgecolors="black", label=f"chosen: {name}")  # fmt: skip
axes.axhline(limits[0].value, color="0.4", lw=0.8, ls="--")
axes.set(xscale="log", yscale="log", xlabel="USD per 1,000 queries", ylabel=limits[0].outcome)
axes.legend(fontsize=8)
plt.show()

# %% [markdown]
# ## What the result says

# %%
summary = results["all three"].summary()
for key in [
    "constraints",
    *(f"true_{limit.outcome}" for limit in limits),
    "feasible",
    "stop_reason",
]:
    print(f"{key}: {summary[key]}")
tomorrow = summary["population"]
print(
    "on new queries, quality minus the least allowed:", np.round(tomorrow["quality_difference"], 3)
)

# %% [markdown]
# ## The other way round
#
# The best quality among configurations that cost at most a tenth of the reference.

# %%
cap = float(4 * task.problem.reference_cost_usd)
best = with_constraints(task, [f"cost_usd <= 0.1 * reference cap {cap:.6g}"], "quality")
search = make_scope_joint(best.problem, base=base, seed=0, device="cpu")
result = run(best.problem, search, best.evaluator, budget)
s = result.summary()
print(f"{' + '.join(result.choice.values())}: quality {s['true_quality']:.3f}, "
      f"the best possible is {s['optimal_quality']:.3f}; "
      f"{s['true_cost_usd'] / s['reference_cost_usd']:.1%} of the reference's cost")  # fmt: skip

# %% [markdown]
# ## The decision page
#
# Everything above, for somebody who does not read the paper; its symbols are folded away.

# %%
page = result.save(Path(tempfile.mkdtemp()) / "report.html")
print(f"open {page}")
