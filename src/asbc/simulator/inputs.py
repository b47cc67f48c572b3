"""What the simulator accepts; anything else is refused by argument and first offending index."""

import torch
from torch import Tensor

from asbc.simulator.prior import Prior
from asbc.simulator.residual import Prefix
from asbc.utils.checks import InputError, require, require_shape


def check_rollout(
    prior: Prior,
    theta: Tensor,
    leader_speed: Tensor,
    gap: Tensor,
    speed: Tensor,
    prefix: Prefix | None,
) -> None:
    """Raise unless these are arguments `Simulator.rollout` can use."""
    require_shape("theta", theta, (None, prior.dim))
    batch = theta.shape[0]
    require_shape("leader_speed", leader_speed, (batch, None))
    require_shape("gap", gap, (batch,))
    require_shape("speed", speed, (batch,))
    if leader_speed.shape[1] == 0:
        raise InputError("leader_speed has no time steps, expected one at least")
    _check_support(prior, theta)
    require("leader_speed", leader_speed, _not_negative(leader_speed), "0 or more (m/s)")
    require("gap", gap, (gap > 0) & (gap < torch.inf), "a positive number (metres)")
    require("speed", speed, _not_negative(speed), "0 or more (m/s)")
    if prefix is not None:
        values, observed = prefix.residuals, prefix.observed
        require_shape("prefix.residuals", values, (batch, None))
        require_shape("prefix.observed", observed, tuple(values.shape))
        require("prefix.residuals", values, values.isfinite() | ~observed, "a finite number")


def check_trajectory(prior: Prior, theta: Tensor, states: Tensor) -> None:
    """Raise unless theta is (..., dim) and states (..., steps, 3)."""
    if theta.shape[-1:] != (prior.dim,):
        raise InputError(f"theta has shape {tuple(theta.shape)}, expected (..., {prior.dim})")
    if states.ndim < 2 or states.shape[-1] != 3:
        raise InputError(f"states has shape {tuple(states.shape)}, expected (..., steps, 3)")


def _check_support(prior: Prior, theta: Tensor) -> None:
    inside = prior.inside(theta)
    if bool(inside.all()):
        return
    marginal = prior.marginals[int(torch.nonzero(~inside)[0, 1])]
    expected = f"{marginal.name} in [{marginal.low}, {marginal.high}] {marginal.unit}"
    require("theta", theta, inside, expected)


def _not_negative(value: Tensor) -> Tensor:
    """Where the value is 0 or more and finite; false for NaN."""
    return (value >= 0) & (value < torch.inf)
