# %% [markdown]
# # The surrogate: a Gaussian process per query, collapsed
#
# SCOPE pays for one (configuration, query) pair at a time. So it must know which queries of a
# configuration are still uncertain, and it has a Gaussian process for every query. It must also
# know the averages over all queries, for every configuration there is. This page shows why the
# averages do not cost more.

# %%
import itertools

import matplotlib.pyplot as plt
import torch

from scope_torch.model.hamming_sums import HammingGrid
from scope_torch.model.kernels import HammingMatern52Kernel, HammingRBFKernel
from scope_torch.model.per_query import QuerySurrogate
from scope_torch.observation import Request
from scope_torch.space import ConfigSpace
from scope_torch.tasks.synthetic import synthetic_task

# %% [markdown]
# ## How much one configuration says about another
#
# The kernel says how similar two configurations are. Nothing is known about LLMs but their names.
# So the kernel looks only at the Hamming distance h: the number of modules that the two
# configurations run with different LLMs.

# %%
fig, axes = plt.subplots(figsize=(5, 2.8), layout="constrained")
for label, kernel in {"Matern 5/2": HammingMatern52Kernel(), "RBF": HammingRBFKernel()}.items():
    axes.plot(kernel.profile(5).numpy(), "o-", label=label)
axes.set(xlabel="Hamming distance h", ylabel="k", ylim=(0, 1.05))
axes.legend()
plt.show()

# %% [markdown]
# ## A Gaussian process per query
#
# Two modules, six LLMs each, and only three queries, so that all can be drawn. Seven pairs are
# observed. The pictures show the constraint, g = s_0 - quality of a query; at most 0 is good.

# %%
task = synthetic_task(num_queries=3, world_seed=21)
problem, space = task.problem, task.problem.space
kernel = HammingMatern52Kernel()
surrogate = QuerySurrogate(space, kernel, problem.num_queries, lam=1e-6)
pairs = [((1, 2), 0), ((1, 2), 1), ((4, 2), 0), ((4, 4), 1), ((0, 5), 1), ((3, 0), 2), ((3, 4), 2)]
for observation in task.evaluator.evaluate([Request(theta, query) for theta, query in pairs]):
    y_g = problem.s_0 - observation.quality
    surrogate.observe(observation.theta, observation.query, observation.cost_usd, y_g)

every = space.unrank(torch.arange(space.size))  # all of Theta: 36 x 2 codes
at = [surrogate.at(theta) for theta in every.tolist()]
mean_g = torch.stack([posterior.mean_g for posterior in at], -1)  # num_queries x |Theta|
variance = torch.stack([posterior.variance for posterior in at], -1)


def draw(axes, values, title, marks=(), **style):
    """A picture of values on Theta; observed configurations are marked."""
    image = axes.imshow(values.reshape(space.sizes).numpy(), **style)
    for row, column in marks:
        axes.plot(column, row, "kx")
    axes.set(title=title, xlabel="LLM of module 2", ylabel="LLM of module 1")
    return image


fig, rows = plt.subplots(2, 4, figsize=(12, 5.6), layout="constrained")
sigma_rms = variance.mean(0).sqrt()
for q in range(problem.num_queries):
    seen = [theta for theta, query in pairs if query == q]
    style = {"cmap": "RdBu_r", "vmin": -1, "vmax": 1}
    image = draw(rows[0, q], mean_g[q], f"mean of g, query {q}", seen, **style)
    sigma = draw(rows[1, q], variance[q].sqrt(), f"sigma, query {q}", seen, vmin=0, vmax=1)
draw(rows[0, 3], mean_g.mean(0), "mu_bar: their average", {t for t, _ in pairs}, **style)
draw(
    rows[1, 3], sigma_rms, "sigma_rms: their quadratic mean", {t for t, _ in pairs}, vmin=0, vmax=1
)
fig.colorbar(image, ax=rows[0])
fig.colorbar(sigma, ax=rows[1])
plt.show()

# %% [markdown]
# The uncertainty depends on which pairs were observed and not on their values. So cost and
# constraint share it, and so do queries with the same observed configurations.
#
# ## The collapse
#
# The mean of query q is a sum of kernels at the configurations observed on q. Averaged over the
# queries it is one sum of kernels, at the distinct configurations D observed on any query:
#
#     mu_bar(theta)      = sum_d w_d k(theta, d)
#     sigma_bar(theta)^2 = 1/Q - sum_de V_de k(theta, d) k(theta, e)
#
# So the work for one configuration does not depend on the number of queries.

# %%
aggregate = surrogate.aggregate()
k = kernel(every.double(), aggregate.codes.double()).to_dense()  # |Theta| x |D|
collapsed = k @ aggregate.weights[1]
sigma_bar_squared = aggregate.constant - ((k @ aggregate.matrix) * k).sum(-1)
print("D:", aggregate.codes.tolist())
print("w:", [round(w, 3) for w in aggregate.weights[1].tolist()])
print(f"largest difference of the means: {float((collapsed - mean_g.mean(0)).abs().max()):.0e}")
by_queries = variance.sum(0) / problem.num_queries**2
print(f"and of the variances: {float((sigma_bar_squared - by_queries).abs().max()):.0e}")

# %% [markdown]
# ## The Hamming grid
#
# Theta has many configurations, so the sums over D must be fast. A function of the number of
# matching modules is a sum over the sets S of modules on which theta and d may match,
#
#     k(theta, d) = sum_S a_|S| [theta = d on S],
#
# where a_s is the s-th forward difference of m -> k(N - m) at 0. A weighted sum of kernels is then
# a sum of small tables, one for every S. The table of S depends only on the LLMs of the modules in
# S. Adding the tables by broadcasting gives the function on all of Theta. The four tables of this
# example:

# %%
by_matches = kernel.profile(space.num_modules).flip(0)  # k at m = 0, ..., N matches
a = [by_matches.diff(s)[0] for s in range(space.num_modules + 1)]
tables = {}
for modules in itertools.chain.from_iterable(itertools.combinations((0, 1), s) for s in (0, 1, 2)):
    matches = (every[:, None, modules] == aggregate.codes[None, :, modules]).all(-1)
    tables[modules] = a[len(modules)] * matches.double() @ aggregate.weights[1]

fig, axes = plt.subplots(1, 5, figsize=(13, 2.8), layout="constrained")
style = {"cmap": "RdBu_r", "vmin": -0.5, "vmax": 0.5}
for ax, (modules, table) in zip(axes, tables.items(), strict=False):
    image = draw(ax, table, f"S = {{{', '.join(str(i + 1) for i in modules)}}}", **style)
draw(axes[4], sum(tables.values()), "sum = mu_bar", aggregate.codes.tolist(), **style)
fig.colorbar(image, ax=axes)
plt.show()
print(f"largest difference: {float((sum(tables.values()) - collapsed).abs().max()):.0e}")

# %% [markdown]
# `HammingGrid` does this for any number of modules, and does the same for the variance. Four
# modules with 23 LLMs each have 279,841 configurations; the sums below are exact for all of them.

# %%
space = ConfigSpace((23,) * 4)
generator = torch.Generator().manual_seed(0)
codes = torch.tensor(space.sample(40, generator))
weights = torch.randn(len(codes), generator=generator, dtype=torch.float64)
grid = HammingGrid(space, kernel)
mean = grid.weighted_sum(codes, weights)
form = grid.quadratic_form(codes, weights.outer(weights))
print(f"{len(mean):,} configurations; the form of w w^T is the square of the sum:",
      f"{float((form - mean**2).abs().max()):.0e}")  # fmt: skip
naive, shared = len(codes) * space.size, len(codes) * 2**space.num_modules + 24**4
print(f"additions for the mean: {naive:,} directly, about {shared:,} by tables")
