# %% [markdown]
# # Bounds, certificate, gap
#
# What does it mean that a configuration is *accepted* or *certified*? And how much dearer than the
# best one can it be? The task here is a small made-up table: 36 configurations on 60 queries. The
# truth is known, so we can put SCOPE's bounds beside it.

# %%
import math
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import torch

from scope_torch import make_scope, run
from scope_torch.model.hamming_sums import make_grid
from scope_torch.space_search.grid import GridPosterior
from scope_torch.tasks.synthetic import synthetic_task

task = synthetic_task()
problem = task.problem
scope = make_scope(problem, base="small", seed=1, device="cpu")
result = run(problem, scope, task.evaluator, budget_usd=3.0)

# %% [markdown]
# ## The result in a few lines

# %%
out = result.recommendation
print("theta_out:", result.choice, "-", out.basis)
print(
    f"threshold s_0 = {problem.s_0:.3f} = (1 - {problem.epsilon}) {problem.reference_quality:.3f}"
)
print(f"costs at most {out.u_out_usd:.5f} USD a query within its bounds; the reference costs "
      f"{problem.reference_cost_usd:.5f}")  # fmt: skip
print(f"gap {out.gap_usd:.5f} USD; stopped: {result.stop_reason}")
for assumption in result.report["assumptions"]:
    print("*", assumption)

# %% [markdown]
# ## The bounds, beside the truth
#
# For every configuration the surrogate gives a mean mu_bar and a standard deviation sigma_bar of
# the average over the queries, for the cost c and for the constraint g = s_0 - s. The confidence
# bounds are
#
#     L, U = mu_bar -+ b sigma_rms,    sigma_rms = sqrt(Q) sigma_bar
#
# sigma_rms is 1 where nothing is known, and falls towards 0 as queries are observed. So b_c (in
# USD) and b_g (in units of quality) are the half-widths at a configuration about which nothing is
# known.

# %%
posterior = GridPosterior(
    scope.belief.surrogate, make_grid(problem.space, scope.belief.surrogate.kernel)
)
posterior.update()
sigma_rms = (problem.num_queries * posterior.variance).sqrt()
b_c, b_g = result.report["b_c"], result.report["b_g"]
true_cost, true_quality = task.evaluator.truth()
print(f"b_c = {b_c:.5f} USD, b_g = {b_g:.3f}")

# %% [markdown]
# Configurations are sorted by their true cost. The dotted line is g = 0: a configuration on it or
# below is good enough.
#
# - If the whole interval of g lies above the line, the configuration is ruled out as too poor.
# - If the whole interval of the cost lies above u_out, it is ruled out as too dear.
# - If the whole interval of g lies below the line, it is accepted.

# %%
order = true_cost.argsort()
where = range(len(order))
index_out = int(problem.space.rank(torch.tensor(out.theta)))
place_out = order.tolist().index(index_out)

fig, (above, below) = plt.subplots(2, 1, figsize=(8, 6), sharex=True, layout="constrained")
for axes, mean, b, truth in (
    (above, posterior.mean_c, b_c, true_cost),
    (below, posterior.mean_g, b_g, problem.s_0 - true_quality),
):
    half_width = (b * sigma_rms)[order]
    axes.errorbar(
        where, mean[order].numpy(), half_width.numpy(), fmt="none", capsize=2, lw=1, label="[L, U]"
    )
    axes.plot(where, truth[order].numpy(), "k.", label="truth")
    axes.axvline(place_out, color="tab:green", lw=6, alpha=0.25, label="theta_out")
above.axhline(out.u_out_usd, color="tab:green", ls="--", lw=1, label="u_out")
above.set(ylabel="cost [USD/query]", yscale="log", ylim=(1e-4, 0.1))
below.axhline(0, color="0.3", ls=":")
below.set(ylabel="g = s_0 - quality", xlabel="configurations, by true cost")
above.legend(fontsize="small")
plt.show()

# %% [markdown]
# ## The certificate
#
# theta_out is accepted because U_g(theta_out) <= 0. If the bounds hold, its average quality over
# these queries is at least s_0. The assumptions above say when they hold. With the default `tuned`
# bounds, b_c and b_g are set from the first observations and **no probability is attached**: so it
# is `accepted (tuned)`, not `certified`. Here we can look:

# %%
upper_g = posterior.mean_g + b_g * sigma_rms
print(f"U_g(theta_out) = {float(upper_g[index_out]):.4f}")
print(f"theta_out: true quality {true_quality[index_out]:.3f}, s_0 = {problem.s_0:.3f}")
tiny = 1e-9
for name, mean, b, truth in (
    ("c", posterior.mean_c, b_c, true_cost),
    ("g", posterior.mean_g, b_g, problem.s_0 - true_quality),
):
    not_below = truth >= mean - b * sigma_rms - tiny
    not_above = truth <= mean + b * sigma_rms + tiny
    print(
        f"{name}: at least L for {int(not_below.sum())} of 36, at most U for {int(not_above.sum())}"
    )

# %% [markdown]
# The bounds of the constraint contain the truth everywhere. The bounds of the cost do not: b_c is a
# thirtieth of the reference's cost, and SCOPE has seen little of the dear configurations, so it
# takes them for cheaper than they are. This error can cost money but not correctness: nothing
# better is lost as long as no true cost is *below* its L_c.
#
# `theory` takes the half-widths from the paper's theorem. Such bounds hold with probability at
# least 1 - delta, if the noise is sub-Gaussian with the given R, and every query's cost and
# constraint has RKHS norm at most B. They are so wide that a configuration is certified only once
# all its queries were run, and little is pruned:

# %%
theory = make_scope(problem, base="small", seed=1, device="cpu", bounds={"mode": "theory"})
proven = run(problem, theory, task.evaluator, budget_usd=3.0)
for name, this in {"tuned": result, "theory": proven}.items():
    cost = float(true_cost[problem.space.rank(torch.tensor(this.recommendation.theta))])
    print(
        f"{name:6}  b_g {this.report['b_g']:6.3f}  b_c {this.report['b_c']:.5f} USD  "
        f"{this.recommendation.basis}, true cost {cost:.5f}, "
        f"gap {this.recommendation.gap_usd:.5f}, pruned {this.report['candidates_pruned']} of "
        f"{this.report['candidates']} candidates"
    )

# %% [markdown]
# ## The gap
#
# Let theta_star be the cheapest feasible configuration. It cannot cost less than the least L_c
# among the configurations that may be feasible. So, while the bounds hold,
#
#     c(theta_out) - c(theta_star) <= u_out - min{L_c(theta) : L_g(theta) <= 0} = gap.
#
# The trace has u_out and the gap along the search. The gap starts above u_out, because some L_c are
# negative at first. It ends at 0, which a logarithmic axis cannot show. Whenever nothing else can
# improve on theta_out and money is left, SCOPE widens b_g and looks again (dotted), so the gap may
# grow. The search ends when b_g is as wide as its rule allows; `gap_tolerance` ends it earlier.

# %%
rows = [row for row in result.trace if row.u_out_usd is not None]
spend = [row.spend_usd for row in rows]
best = float(true_cost[true_quality >= problem.s_0].min())

fig, axes = plt.subplots(figsize=(8, 3.6), layout="constrained")
axes.plot(spend, [row.u_out_usd for row in rows], drawstyle="steps-post", label="u_out")
gap = [math.nan if row.gap_usd is None else row.gap_usd for row in rows]
axes.plot(spend, gap, drawstyle="steps-post", label="gap")
pruned = [row for row in rows if row.event == "pruned"]
spend_pruned = [row.spend_usd for row in pruned]
axes.plot(spend_pruned, [row.u_out_usd for row in pruned], "|", color="0.4", label="pruned")
axes.axhline(best, color="0.4", ls="-.", lw=1, label="c(theta_star)")
for row in rows:
    if row.event == "widened":
        axes.axvline(row.spend_usd, color="tab:red", ls=":", lw=1)
axes.plot([], [], color="tab:red", ls=":", label="b_g is widened")
axes.set(xlabel="spend [USD]", ylabel="USD/query", yscale="log", ylim=(2e-4, 0.1))
axes.legend(fontsize="small")
plt.show()

# %% [markdown]
# The certificate and the gap speak of the queries searched on. To learn about future queries,
# evaluate theta_out and theta_0 on held-out ones: `deploy=true`, or `scope-torch evaluate`.

# %% [markdown]
# ## The decision page
#
# Everything above, for somebody who does not read the paper; its symbols are folded away.

# %%
page = result.save(Path(tempfile.mkdtemp()) / "report.html")
print(f"open {page}")
