"""How Theta is searched with the joint surrogate."""

from __future__ import annotations

from collections.abc import Callable

from scope_torch.allowed import Allowed
from scope_torch.model.joint import JointSurrogate
from scope_torch.model.list_sums import listed
from scope_torch.space_search.box import BoxedPosterior
from scope_torch.space_search.branched import BranchedPosterior
from scope_torch.space_search.device_joint import DeviceJointPosterior, make_joint_posterior
from scope_torch.space_search.grid import GridPosterior, enumerates, settings_of

MAX_NODES = 20_000


def make_joint_search(
    surrogate: JointSurrogate,
    *,
    space_search: str,
    max_nodes: int,
    margin: Callable[[], float],
    allowed: Allowed | None = None,
) -> GridPosterior | BoxedPosterior | DeviceJointPosterior | BranchedPosterior:
    """The posterior on Theta, by `grid` or `branch_and_bound`; `auto`: see `enumerates`.

    Args:
        surrogate: The joint surrogate.
        space_search: As above.
        max_nodes: Prefixes that one search expands at most; then it returns the best it has found.
        margin: How far below 0 the choice asks L_g to be, in units of quality.
        allowed: Which configurations may be chosen; None for all.

    Raises:
        InputError: If `space_search` is neither, or cannot search this space.
    """
    space, kernel = surrogate.space, surrogate.kernel
    index = listed(allowed, kernel)
    if enumerates(space, space_search, index):
        settings = settings_of(space, space_search, max_nodes)
        return make_joint_posterior(surrogate, margin() > 0, allowed, settings, index)
    return BranchedPosterior(surrogate, space, kernel, max_nodes, margin, allowed)
