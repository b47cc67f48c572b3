"""Redraws of posterior samples that fall outside the prior's support: bounded, never clamped.

A draw so far out that the transform saturates counts as outside: it would lie on the edge of the
support, where the density of the flow is not the density of the draw.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from asbc.simulator import Prior
from asbc.utils.random import standard_normal, uniform


def redraw(
    theta: Tensor,
    outside: Tensor,
    context: Tensor,
    from_noise: Callable[[Tensor, Tensor], Tensor],
    accept: Callable[[Tensor], Tensor],
    prior: Prior,
    rng: np.random.Generator,
    max_tries: int,
) -> None:
    """Replace, in place, the draws of `theta` that are `outside` the support.

    Each is redrawn at most `max_tries` times. What is then still outside is replaced by one of the
    same trajectory's accepted draws, chosen at random; a trajectory without any gets draws from
    the prior (its leak rate is 1, so this shows). Each trajectory redraws from a child of `rng` of
    its own: neither its neighbours nor `rng` itself are affected.

    Args:
        theta: Draws (B, n, D).
        outside: Which of them to replace (B, n).
        context: Context vectors (B, d).
        from_noise: Samples from base noise (b, n, D) and contexts (b, d).
        accept: Which draws (b, D) may stay, bool (b,).
        prior: The last resort.
        rng: Generator whose children are used.
        max_tries: Rounds of redraws.
    """
    children = rng.spawn(len(theta)) if bool(outside.any()) else []
    pending = outside.clone()
    for _ in range(max_tries):
        rows, columns = torch.nonzero(pending, as_tuple=True)
        if len(rows) == 0:
            return
        noise = _per_row(pending, children, prior.dim, standard_normal)
        fresh = from_noise(noise[:, None].to(theta.device), context[rows])[:, 0]
        accepted = accept(fresh)
        theta[rows[accepted], columns[accepted]] = fresh[accepted]
        pending[rows[accepted], columns[accepted]] = False
    _fall_back(theta, pending, children, prior)


def _per_row(
    pending: Tensor,
    children: list[np.random.Generator],
    dim: int,
    draw: Callable[..., Tensor],
) -> Tensor:
    """One draw of size `dim` for each pending entry, from its row's generator, in row order."""
    counts = pending.sum(1).tolist()
    return torch.cat(
        [draw(children[row], count, dim) for row, count in enumerate(counts) if count]
    )


def _fall_back(
    theta: Tensor, pending: Tensor, children: list[np.random.Generator], prior: Prior
) -> None:
    for row in torch.nonzero(pending.any(1))[:, 0].tolist():
        missing = pending[row]
        accepted = theta[row, ~missing]
        count = int(missing.sum())
        if len(accepted):
            chosen = children[row].integers(0, len(accepted), size=count)
            theta[row, missing] = accepted[torch.from_numpy(chosen)]
        else:
            theta[row] = prior.icdf(uniform(children[row], count, prior.dim)).to(theta)
