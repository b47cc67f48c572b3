"""A user's own law, residual, encoder, loader and metric, written as CONTRIBUTING.md says."""

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from asbc.data.source import DataSource, Loaded
from asbc.data.table import validate_pairs
from asbc.evaluation.scores import Score
from asbc.simulator import Prefix
from asbc.utils.random import uniform


class Helly:
    """A linear law: c1 (v_leader - v) + c2 (gap - distance - headway v)."""

    parameters = ("c1", "c2", "distance", "headway")

    def acceleration(
        self, theta: Tensor, gap: Tensor, speed: Tensor, approach_rate: Tensor
    ) -> Tensor:
        c1, c2, distance, headway = theta.unbind(-1)[:4]
        return -c1 * approach_rate + c2 * (gap - distance - headway * speed)

    def equilibrium_gap(self, theta: Tensor, speed: Tensor) -> Tensor:
        _, _, distance, headway = theta.unbind(-1)[:4]
        return distance + headway * speed


class DoubleExponential:
    """Independent residuals with the density exp(-|r| / sigma) / (2 sigma)."""

    parameters = ("sigma",)

    def sample(
        self,
        hyper: Tensor,
        steps: int,
        dt: float,
        rng: np.random.Generator,
        prefix: Prefix | None = None,
    ) -> Tensor:
        share = uniform(rng, len(hyper), steps).to(hyper) - 0.5
        return -hyper[:, :1] * share.sign() * torch.log1p(-2 * share.abs().clamp_max(0.4999999))

    def log_likelihood(
        self,
        residuals: Tensor,
        hyper: Tensor,
        dt: float,
        lower: Tensor | None = None,
        upper: Tensor | None = None,
    ) -> Tensor:
        sigma = hyper[..., :1].double()
        return (-residuals.double().abs() / sigma - sigma.log() - math.log(2)).sum(-1)


class MomentEncoder(nn.Module):
    """Mean and spread of each state over time, through one layer."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.input_dim, self.output_dim = 3, size
        self.layer = nn.Linear(6, size)

    def forward(self, states: Tensor, lengths: Tensor | None = None) -> Tensor:
        moments = torch.cat([states.mean(1), states.std(1)], dim=-1)
        return torch.tanh(self.layer(moments))


@dataclass(frozen=True, kw_only=True)
class SpacedText(DataSource):
    """Pairs from a text file with semicolons and other names of the columns."""

    file: str

    @property
    def description(self) -> str:
        return f"spaced text: {self.file}"

    def load(self) -> Loaded:
        table = pd.read_csv(self.file, sep=";").rename(
            columns={"v": "speed", "vl": "leader_speed"}
        )
        return Loaded(validate_pairs(table, self.description), {})


def median_error() -> Score:
    """Median over the steps of the mean prediction's absolute error."""
    return Score(
        name="median_error",
        label="MedAE",
        function=lambda samples, ordered, observed: (
            (samples.mean(1, dtype=torch.float64) - observed).abs().median(-1).values
        ),
    )
