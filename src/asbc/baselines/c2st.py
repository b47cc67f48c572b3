"""Classifier two-sample test for many pairs of samples at once."""

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, relu

from asbc.utils.random import standard_normal

FOLDS = 3
HIDDEN_PER_DIMENSION = 10
EPOCHS = 40
LEARNING_RATE = 0.01
WEIGHT_DECAY = 1.0


def c2st(first: Tensor, second: Tensor, rng: np.random.Generator) -> Tensor:
    """Accuracy (problem,) with which a network tells two samples apart: 0.5 alike, 1 distinct.

    As in Lopez-Paz & Oquab (2017) with the network of Lueckmann et al. (2021): two hidden layers
    of ten units per dimension, standardised input, mean accuracy over held-out folds. The
    networks of all problems and folds train side by side.

    Args:
        first, second: (problem, draw, dim), equally many draws of both.
        rng: folds and initial weights.
    """
    points, label = _standardised(first, second)
    problems, count, dim = points.shape
    order = torch.from_numpy(rng.permutation(count))
    fold = torch.empty(count, dtype=torch.int64)
    fold[order] = torch.arange(count) % FOLDS
    held_out = (fold == torch.arange(FOLDS)[:, None]).repeat(problems, 1)  # (network, point)
    inputs = points.repeat_interleave(FOLDS, dim=0)
    target = label.expand(len(inputs), -1)
    layers = _initial_layers(len(inputs), dim, HIDDEN_PER_DIMENSION * dim, rng)
    adam = torch.optim.AdamW(layers, lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    for _ in range(EPOCHS):
        loss = binary_cross_entropy_with_logits(
            _forward(layers, inputs), target, weight=(~held_out).float(), reduction="sum"
        )
        adam.zero_grad()
        loss.backward()
        adam.step()
    with torch.no_grad():
        right = ((_forward(layers, inputs) > 0) == (target > 0)) & held_out
    return right.sum(1).reshape(problems, FOLDS).sum(1) / count


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
