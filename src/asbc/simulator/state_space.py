"""The Matern-5/2 process of unit variance as a linear Gaussian state space.

The state is (f, f'/lam, f''/lam^2) with lam = sqrt(5)/ell. In scaled time x = lam t it follows a
stochastic differential equation without any parameter, so transition and process noise are
functions of x alone. Everything is float64, with the matrix axes first and the batch last: small
matrix products become a few vectorised multiplications.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Transition(NamedTuple):
    """One time step: s' = matrix s + N(0, noise)."""

    matrix: Tensor  # (3, 3, ...)
    noise: Tensor  # (3, 3, ...)


class Belief(NamedTuple):
    """A Gaussian over the state."""

    mean: Tensor  # (3, ...)
    covariance: Tensor  # (3, 3, ...)


def transition(ell: Tensor, dt: float) -> Transition:
    """The exact discretisation for length scales ell (...) and time step dt."""
    x = (5**0.5 * dt) / ell.to(torch.float64)
    return Transition(_transition_matrix(x), _process_noise(x))


def stationary(like: Tensor) -> Belief:
    """The process's stationary distribution, one copy per entry of `like`."""
    third = 1 / 3
    covariance = torch.tensor(
        [[1, 0, -third], [0, third, 0], [-third, 0, 1]], dtype=torch.float64, device=like.device
    )
    shape = like.shape
    mean = torch.zeros(3, *shape, dtype=torch.float64, device=like.device)
    return Belief(mean, covariance.reshape(3, 3, *[1] * len(shape)).expand(3, 3, *shape))


def predict(belief: Belief, step: Transition) -> Belief:
    """The belief one time step later."""
    return Belief(multiply(step.matrix, belief.mean), _propagate(belief.covariance, step))


def condition(belief: Belief, variance: Tensor, shift: Tensor, shrink: Tensor | float) -> Belief:
    """The belief after its first component was observed with total variance `variance`.

    Args:
        belief: predicted state.
        variance: predictive variance of the observation (...).
        shift: standardised innovation (...), or its mean where it is known only to be in a range.
        shrink: share of the predictive variance that the observation removes: 1 for a value,
            0 for nothing observed.
    """
    covariance = belief.covariance
    gain = covariance[:, 0] / variance.sqrt()
    removed = gain.unsqueeze(0) * (gain * shrink).unsqueeze(1)
    return Belief(belief.mean + gain * shift, covariance - removed)


def block(step: Transition, size: int, white: float) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    """The joint distribution of `size` noisy values and the state at the last of them.

    Given the state s before the block, (y_1, ..., y_size, s_size) is Gaussian, where y is the
    first component plus white noise of variance `white`. Drawing whole blocks takes size + 3
    normal variates instead of 4 size, and fewer passes over the batch.

    Returns:
        The columns of the matrix that takes s to the mean, and of the covariance's Cholesky
        factor.
    """
    rows, columns = [], []
    power, noise = step.matrix, step.noise  # transition and noise over i + 1 steps
    for i in range(size):
        if i > 0:
            power = multiply(step.matrix, power)
            noise = _propagate(noise, step)
        cross = noise[:, 0]  # covariance of the state with the value at the same time
        column = [cross[0] + white]
        for _ in range(i + 1, size):
            cross = multiply(step.matrix, cross)
            column.append(cross[0])
        rows.append(power[0])
        columns.append(torch.stack([*column, *cross]))
    columns += [noise[j:, j] for j in range(3)]
    return torch.stack([*rows, *power], dim=1).unbind(0), cholesky(columns)


def cholesky(columns: Sequence[Tensor]) -> list[Tensor]:
    """Columns of the Cholesky factor, given the covariance's, all from the diagonal downwards."""
    factor: list[Tensor] = []
    for j, column in enumerate(columns):
        # A pivot that is 0 but for rounding belongs to a direction without noise (the last value
        # of a block without white noise is part of the state): the floor makes it vanish.
        floor = (1e-12 * column[0]).clamp_min(1e-30)
        for i, earlier in enumerate(factor):
            column = column - earlier[j - i :] * earlier[j - i]
        factor.append(column / torch.maximum(column[0], floor).sqrt())
    return factor


def correlate(factor: Sequence[Tensor], normal: Tensor) -> Tensor:
    """Cholesky factor (by columns) times standard normal variates (n, ...)."""
    value = factor[0] * normal[0]
    for j in range(1, len(factor)):
        value[j:].addcmul_(factor[j], normal[j])
    return value


def multiply(left: Tensor, right: Tensor) -> Tensor:
    """Matrix times matrix or vector over the leading axes."""
    if right.ndim == left.ndim:
        left = left.unsqueeze(2)
    return left[:, 0] * right[0] + left[:, 1] * right[1] + left[:, 2] * right[2]


def _propagate(covariance: Tensor, step: Transition) -> Tensor:
    half = multiply(step.matrix, covariance)
    return multiply(step.matrix, half.transpose(0, 1)) + step.noise


def _transition_matrix(x: Tensor) -> Tensor:
    half = x.square() / 2
    rows = [
        [1 + x + half, x + 2 * half, half],
        [-half, 1 + x - 2 * half, x - half],
        [half - x, 2 * half - 3 * x, 1 - 2 * x + half],
    ]
    return torch.stack([torch.stack(row) for row in rows]) * torch.exp(-x)


def _process_noise(x: Tensor) -> Tensor:
    """16/3 int_0^x g g^T ds with g(s) = e^-s (s^2/2, s - s^2/2, 1 - 2s + s^2/2).

    Stationary covariance minus its propagated part is the same matrix, but cancels to nothing for
    small x (entries of order x^5). With I_n = int_0^x s^n e^-2s ds, I_4 is an incomplete gamma
    function and the recursion down from it adds positive terms only: full relative accuracy.
    """
    i4 = 0.75 * torch.special.gammainc(torch.full_like(x, 5.0), 2 * x)
    edge = torch.exp(-2 * x)
    i3 = (2 * i4 + x**4 * edge) / 4
    i2 = (2 * i3 + x**3 * edge) / 3
    i1 = (2 * i2 + x**2 * edge) / 2
    i0 = 2 * i1 + x * edge
    q11 = i4 / 4
    q12 = i3 / 2 - i4 / 4
    q13 = i2 / 2 - i3 + i4 / 4
    q22 = i2 - i3 + i4 / 4
    q23 = i1 - 2.5 * i2 + 1.5 * i3 - i4 / 4
    q33 = i0 - 4 * i1 + 5 * i2 - 2 * i3 + i4 / 4
    rows = [[q11, q12, q13], [q12, q22, q23], [q13, q23, q33]]
    return torch.stack([torch.stack(row) for row in rows]) * (16 / 3)
