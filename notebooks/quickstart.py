# %% [markdown]
# # Quickstart: your own system
#
# You have a system of two modules, and a few LLMs that could run each of them. Which LLM should run
# which module? The expensive assignment works; you want the cheapest one that is about as good.
# This page searches for it, with a system that only pretends to call LLMs, so it costs nothing. Put
# your own in its place.

# %%
import random
import tempfile

import matplotlib.pyplot as plt
import numpy as np

import scope_torch as st

# %% [markdown]
# ## The app
#
# Any function will do. It gets the LLM of each module and one input. It returns its output, and
# what the run cost: in USD here; the tokens of each module are fine too.

# %%
PRICE = {"nano": 0.0001, "mini": 0.0004, "plus": 0.002, "pro": 0.01}  # USD per call
SKILL = {"nano": 0.35, "mini": 0.93, "plus": 0.97, "pro": 1.0}
LLMS = list(PRICE)


def app(models: dict[str, str], question: str) -> tuple[str, float]:
    """Call the LLMs named in `models`, add up the bill."""
    luck = random.Random(f"{sorted(models.items())} {question}")
    found = luck.random() < SKILL[models["retrieve"]] ** 0.5  # retrieval is the easier part
    right = found and luck.random() < SKILL[models["answer"]]
    return question.upper() if right else "no idea", sum(PRICE[llm] for llm in models.values())


# %% [markdown]
# ## What you need besides
#
# - **models**: the candidates of each module;
# - a **dataset** of (input, expected) pairs;
# - a **metric** that compares what is expected with the output;
# - the **reference**: the assignment that you trust. It answers every question once;
# - how much quality you would give up for a lower price, relative to the reference;
# - a **budget**, from which everything is paid.
#
# A dry run makes no call. It says what will happen.

# %%
settings = {
    "models": {"retrieve": LLMS, "answer": LLMS},
    "dataset": [(f"question {i}", f"QUESTION {i}") for i in range(60)],
    "metric": st.metrics.exact_match,
    "reference": "pro",
    "max_quality_loss": 0.1,
    "budget_usd": 3.0,
    "run_dir": tempfile.mkdtemp(),
}
print(st.select(app, dry_run=True, **settings))

# %% [markdown]
# ## The search
#
# With `run_dir` every call is on disk before it is used. If the process dies, run the same lines
# again: they continue where it stopped. Here `run_dir` is a temporary directory; choose a real one.

# %%
result = st.select(app, **settings)
print(result)

# %% [markdown]
# *Certified* means: the answers themselves prove that the average quality over these questions is
# at least the threshold, except with a probability of 5%. `savings` and `quality` have intervals.
# The bill says where the money went.

# %%
print(result.quality)
print(result.savings)
print(result.bill)

# %% [markdown]
# This app is free, so we can check the answer:


# %%
def average(models: dict[str, str]) -> np.ndarray:
    """Average quality and cost over all questions."""
    runs = [(app(models, question), expected) for question, expected in settings["dataset"]]
    return np.mean([(output == expected, usd) for (output, usd), expected in runs], axis=0)


quality, cost_usd = average(result.choice)
threshold = result.problem.s_0
print(f"quality {quality:.3f} (at least {threshold:.3f} wanted)")
print(f"cost {cost_usd / result.problem.reference_cost_usd:.1%} of the reference")

# %% [markdown]
# ## What it looked at
#
# To run everything would take 16 x 60 runs of the app. SCOPE drops a configuration as soon as
# its bounds say that it is too poor or too dear. It does not even begin with configurations that
# their neighbours rule out. `result.table()` has a row for each that was looked at; here are all.

# %%
problem = result.problem
queries_run = np.zeros(problem.space.sizes, dtype=int)
for theta, _ in {(observation.theta, observation.query) for observation in result.history}:
    queries_run[theta] += 1  # each query once, also if it was asked again

fig, axes = plt.subplots(figsize=(5.6, 4.4), layout="constrained")
image = axes.imshow(queries_run, cmap="Blues", vmin=0, vmax=problem.num_queries)
for theta in np.ndindex(queries_run.shape):
    quality, cost_usd = average(problem.names(theta))
    mark = {problem.theta_ref: "\nreference", result.recommendation.theta: "\nchoice"}.get(
        theta, ""
    )
    dark = queries_run[theta] > problem.num_queries / 2
    axes.text(
        theta[1],
        theta[0],
        f"{queries_run[theta]} run\ns = {quality:.2f}\n{1000 * cost_usd:.1f} mUSD{mark}",
        ha="center",
        va="center",
        fontsize=8,
        color="white" if dark else "black",
        weight="normal" if quality < threshold else "bold",  # bold: good enough
    )
axes.set_xticks(range(len(LLMS)), LLMS)
axes.set_yticks(range(len(LLMS)), LLMS)
axes.set(xlabel="answer", ylabel="retrieve", title="queries run (bold: good enough)")
fig.colorbar(image)
plt.show()

# %% [markdown]
# ## Use it
#
# `save` writes the choice: as JSON for your program, or for `scope-torch serve`; as `.env`; or for
# LiteLLM.

# %%
path = result.save(result.run_dir / "models.json")
print(path.read_text())

# %% [markdown]
# ## The decision page
#
# One HTML file for everybody else: what to use, how sure that is, what it cost, and what else there
# is. Open it in a browser, or mail it. `scope-torch watch RUN_DIR --follow` shows the same page
# while a search goes on.

# %%
page = result.save(result.run_dir / "report.html")
print(f"open {page.name}: {page.stat().st_size // 1000} kB, nothing is loaded from elsewhere")

# %% [markdown]
# Next: the guide *Your application* has unchanged applications, commands, and prices by token; *The
# result* what else is in it. *Your own data* has a recorded table instead of a function.
