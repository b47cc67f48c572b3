"""How well an amortized posterior agrees with the exact one, driver by driver.

Two samples of the same posterior are compared by how often a classifier tells them apart (C2ST),
by the overlap of their central intervals, and by the distance of their means.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, relu

from asbc.utils.random import standard_normal

LEVEL = 0.9  # of the intervals whose overlap is reported
# The classifier of C2ST.
FOLDS = 5
HIDDEN_PER_DIMENSION = 10
EPOCHS = 30
BATCH = 200
LEARNING_RATE = 0.01
WEIGHT_DECAY = 2.0


def c2st(first: Tensor, second: Tensor, rng: np.random.Generator) -> Tensor:
    """Accuracy (problem,) with which a network tells two samples apart: 0.5 alike, 1 distinct.

    As in Lopez-Paz & Oquab (2017) with the network of Lueckmann et al. (2021): two hidden layers
    of ten units per dimension, standardised input, mean accuracy over held-out folds. Another
    fold chooses the epoch, for a network trained too long sees differences that are not there
    and misses those that are. The networks of all problems and folds train side by side.

    Args:
        first, second: (problem, draw, dim), equally many draws of both.
        rng: folds, initial weights and batches.
    """
    points, label = _standardised(first, second)
    problems, count, dim = points.shape
    size = count // FOLDS
    order = torch.from_numpy(rng.permutation(count))
    # A row per fold: points to test on, points to choose the epoch on, points to train on.
    order = torch.stack([order.roll(-fold * size) for fold in range(FOLDS)])
    points = points[:, order].flatten(0, 1)  # (network, point, dim)
    label = label[order].repeat(problems, 1)
    layers = _initial_layers(len(points), dim, HIDDEN_PER_DIMENSION * dim, rng)
    adam = torch.optim.AdamW(layers, lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    lowest = torch.full((len(points),), math.inf)
    accuracy = torch.zeros(len(points))
    for _ in range(EPOCHS):
        for batch in torch.from_numpy(2 * size + rng.permutation(count - 2 * size)).split(BATCH):
            adam.zero_grad()
            _losses(layers, points[:, batch], label[:, batch]).sum().backward()
            adam.step()
        with torch.no_grad():
            loss = _losses(layers, points[:, size : 2 * size], label[:, size : 2 * size])
            right = (_forward(layers, points[:, :size]) > 0) == (label[:, :size] > 0)
        accuracy = torch.where(loss < lowest, right.float().mean(1), accuracy)
        lowest = torch.minimum(loss, lowest)
    return accuracy.reshape(problems, FOLDS).mean(1)


def _losses(layers: list[Tensor], points: Tensor, label: Tensor) -> Tensor:
    """Mean cross-entropy (network,)."""
    logit = _forward(layers, points)
    return binary_cross_entropy_with_logits(logit, label, reduction="none").mean(1)


def _standardised(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """All points (problem, 2 draws, dim), scaled by the first sample, and their labels."""
    mean, sd = first.mean(1, keepdim=True), first.std(1, keepdim=True).clamp_min(1e-12)
    points = (torch.cat([first, second], dim=1) - mean) / sd
    label = torch.cat([torch.zeros(first.shape[1]), torch.ones(second.shape[1])])
    # A draw far away is told apart at any distance; the bound keeps training stable.
    return points.clamp(-20, 20).float(), label


def _initial_layers(
    networks: int, dim: int, hidden: int, rng: np.random.Generator
) -> list[Tensor]:
    layers = []
    for inputs, outputs in ((dim, hidden), (hidden, hidden), (hidden, 1)):
        weight = standard_normal(rng, networks, inputs, outputs) * math.sqrt(2 / inputs)
        layers += [weight.requires_grad_(), torch.zeros(networks, 1, outputs, requires_grad=True)]
    return layers


def _forward(layers: list[Tensor], inputs: Tensor) -> Tensor:
    value = inputs
    for weight, bias in zip(layers[:-2:2], layers[1:-2:2], strict=True):
        value = relu(torch.baddbmm(bias, value, weight))
    return torch.baddbmm(layers[-1], value, layers[-2]).squeeze(-1)


def interval_overlap(first: Tensor, second: Tensor, level: float = LEVEL) -> Tensor:
    """Length shared by two central intervals over the length both span, (problem, dim).

    Args:
        first, second: (problem, draw, dim).
        level: mass of the intervals.

    Example:
        >>> draws = torch.linspace(0, 1, 101).reshape(1, -1, 1)
        >>> interval_overlap(draws, draws + 0.45)
        tensor([[0.3333]])
    """
    ends = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=first.dtype)
    (low, high), (other_low, other_high) = (
        torch.quantile(draws, ends, dim=1) for draws in (first, second)
    )
    shared = (torch.minimum(high, other_high) - torch.maximum(low, other_low)).clamp_min(0)
    return shared / (torch.maximum(high, other_high) - torch.minimum(low, other_low))


def agreement(
    exact: Tensor,
    amortized: Tensor,
    names: Sequence[str],
    drivers: Sequence[str],
    rng: np.random.Generator,
) -> pd.DataFrame:
    """A row per driver: C2ST accuracy, interval overlap and shift of each parameter.

    The shift is the difference of the means in standard deviations of the exact posterior.

    Args:
        exact, amortized: (driver, draw, dim) posterior draws.
        names: of the parameters.
        drivers: of the drivers.
        rng: for the classifiers.
    """
    shift = (amortized.mean(1) - exact.mean(1)) / exact.std(1)
    overlap = interval_overlap(exact, amortized)
    return pd.DataFrame(
        {
            "pair_id": list(drivers),
            "c2st": c2st(exact, amortized, rng).numpy(),
            **{f"overlap_{name}": overlap[:, i].numpy() for i, name in enumerate(names)},
            **{f"shift_{name}": shift[:, i].numpy() for i, name in enumerate(names)},
        }
    )


def summarise_agreement(
    table: pd.DataFrame, exact_seconds: float, amortized_seconds: float
) -> dict[str, Any]:
    """Means over drivers, and what a driver costs either way."""
    overlap = table.filter(like="overlap_")
    return {
        "drivers": len(table),
        "c2st_mean": float(table["c2st"].mean()),
        "c2st_worst": float(table["c2st"].max()),
        "interval_overlap": {
            str(name).removeprefix("overlap_"): float(value)
            for name, value in overlap.mean().items()
        },
        "nuts_seconds_per_driver": exact_seconds,
        "amortized_seconds_per_driver": amortized_seconds,
        "speed_up": exact_seconds / amortized_seconds,
    }
