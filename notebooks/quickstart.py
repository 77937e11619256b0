# %% [markdown]
# # Quickstart: your own system
#
# You have a system of two modules, and a few LLMs that could run each of them. Which LLM should run
# which module? The expensive assignment works; you want the cheapest one that is about as good.
# This page searches for it, with a system that only pretends to call LLMs, so it costs nothing. Put
# your own function in its place.

# %%
import random
import tempfile

import matplotlib.pyplot as plt
import numpy as np

from scope_torch import FunctionEvaluator, SelectionProblem, make_scope_joint, run

# %% [markdown]
# ## The system
#
# Any function will do. It gets an assignment of LLMs to modules and one query. It returns the
# quality of the answer, in [0, 1], and its cost in USD.

# %%
PRICE = {"nano": 0.0001, "mini": 0.0004, "plus": 0.002, "pro": 0.01}  # USD per call
SKILL = {"nano": 0.35, "mini": 0.93, "plus": 0.97, "pro": 1.0}
MODULES = ("retrieve", "answer")


def my_system(assignment: dict[str, str], question: str) -> tuple[float, float]:
    """Call the LLMs named in `assignment`, grade the answer, add up the bill."""
    luck = random.Random(f"{sorted(assignment.items())} {question}")
    found = luck.random() < SKILL[assignment["retrieve"]] ** 0.5  # retrieval is the easier part
    right = found and luck.random() < SKILL[assignment["answer"]]
    return float(right), sum(PRICE[llm] for llm in assignment.values())


questions = [f"question {i}" for i in range(60)]

# %% [markdown]
# ## The reference
#
# An assignment is also called a *configuration*. You need one that you trust, the reference
# theta_0, and its average quality and cost over your queries. If you do not have these numbers,
# measure them. They do not count against the search budget.

# %%
reference = {"retrieve": "pro", "answer": "pro"}
measured = [my_system(reference, question) for question in questions]
reference_quality, reference_cost_usd = np.mean(measured, axis=0)
print(f"quality {reference_quality:.3f}, {reference_cost_usd:.4f} USD a query")

# %% [markdown]
# ## The problem
#
# `epsilon` is the share of the reference's quality that you would give up for a lower price. With
# s(theta_0) for that quality, the threshold is s_0 = (1 - epsilon) s(theta_0).

# %%
llms = tuple(PRICE)
problem = SelectionProblem(
    name="quickstart",
    modules=MODULES,
    llms=(llms, llms),  # candidates of each module
    num_queries=len(questions),
    theta_ref=(llms.index("pro"), llms.index("pro")),
    reference_quality=float(reference_quality),
    reference_cost_usd=float(reference_cost_usd),
    epsilon=0.1,
)
print(f"{problem.space.size} configurations, quality at least {problem.s_0:.3f}")

# %% [markdown]
# ## The search
#
# `base` is a cheap LLM: the search starts with configurations that use it in all modules but one.
# With `run_dir` every observation is on disk before it is used. If the process dies, run the same
# lines again: they continue where it stopped. Here `run_dir` is a temporary directory; choose a
# real one.

# %%
result = run(
    problem,
    make_scope_joint(problem, base="mini", seed=0),
    FunctionEvaluator(problem, my_system, questions),
    budget_usd=2.0,
    run_dir=tempfile.mkdtemp(),
)
print(result.llms)
print(result.recommendation.basis, "-", result.stop_reason)
print(f"spent {result.history.spend_usd:.2f} USD on {len(result.history)} runs of the system")

# %% [markdown]
# `certified` means: the answers themselves prove that the average quality over these questions is
# at least s_0, except with a probability of 5%. The notebook *Reading a result* looks at the
# bounds of the paper's method. This system is free, so we can check the answer:


# %%
def average(assignment: dict[str, str]) -> np.ndarray:
    """Average quality and cost over all questions."""
    return np.mean([my_system(assignment, question) for question in questions], axis=0)


quality, cost_usd = average(result.llms)
print(f"quality {quality:.3f} (at least {problem.s_0:.3f} wanted)")
print(f"cost {cost_usd / reference_cost_usd:.1%} of the reference")

# %% [markdown]
# ## Where the money went
#
# To run everything would take 16 x 60 runs of the system. SCOPE drops a configuration as soon as
# its bounds say that it is too poor or too dear. It does not even begin with configurations that
# their neighbours rule out.

# %%
queries_run = np.zeros(problem.space.sizes, dtype=int)
for observation in result.history:
    queries_run[observation.theta] += 1

fig, axes = plt.subplots(figsize=(5.6, 4.4), layout="constrained")
image = axes.imshow(queries_run, cmap="Blues", vmin=0, vmax=len(questions))
for theta in np.ndindex(queries_run.shape):
    quality, cost_usd = average(problem.names(theta))
    mark = {problem.theta_ref: "\ntheta_0", result.recommendation.theta: "\ntheta_out"}.get(
        theta, ""
    )
    dark = queries_run[theta] > len(questions) / 2
    axes.text(
        theta[1],
        theta[0],
        f"{queries_run[theta]} run\ns = {quality:.2f}\n{1000 * cost_usd:.1f} mUSD{mark}",
        ha="center",
        va="center",
        fontsize=8,
        color="white" if dark else "black",
        weight="normal" if quality < problem.s_0 else "bold",  # bold: feasible
    )
axes.set_xticks(range(len(llms)), llms)
axes.set_yticks(range(len(llms)), llms)
axes.set(xlabel="answer", ylabel="retrieve", title="queries run (bold: good enough)")
fig.colorbar(image)
plt.show()

# %% [markdown]
# Next: the guide *Your own system* has many calls at a time, prices by token, and asynchronous
# systems. The guide *Your own data* has a recorded table instead of a function.
