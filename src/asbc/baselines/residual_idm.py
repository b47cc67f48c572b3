"""A car-following law, the same for everybody, and a small network for what it leaves.

The network is that of `baseline=gru`, which moves the residual; the law's parameters are trained
along with it. It is what is often called a residual or physics-informed model.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from asbc.baselines.gru import Gru, RecurrentDriver
from asbc.posterior.transform import Bounded
from asbc.predictive.objective import DRAW_LIMIT
from asbc.predictive.proper_scores import bounded_gradient
from asbc.simulator import Simulator
from asbc.simulator.prior import quantile_grid


class LawfulDriver(RecurrentDriver):
    """A network that adds to the acceleration of the simulator's law.

    Args:
        simulator: its law and the box of its parameters, which start at the prior's centre.
        hidden, latent, prefix_steps: as for `RecurrentDriver`.
    """

    def __init__(self, simulator: Simulator, hidden: int, latent: int, prefix_steps: int) -> None:
        super().__init__(simulator, hidden, latent, prefix_steps)
        prior, count = simulator.prior, len(simulator.law.parameters)
        self.transform = Bounded(prior.low[:count], prior.high[:count])
        self.u = nn.Parameter(self.transform.inverse(quantile_grid(prior)[:, :count]).mean(0))

    def law(self, gap: Tensor, speed: Tensor, leader_speed: Tensor) -> Tensor:
        """The law's acceleration with the parameters of everybody."""
        theta = self.transform(self.u).expand(len(gap), -1)
        # A metre behind the leader the law is too stiff for the time step: what comes back
        # through it is bounded, row by row, so that it cannot grow from step to step.
        given = torch.cat([torch.stack([gap + 1, speed + 1], dim=-1), theta], dim=-1)
        given = bounded_gradient(given, DRAW_LIMIT / len(gap))
        gap, speed = given[:, 0] - 1, given[:, 1] - 1
        return self.simulator.law_acceleration(given[:, 2:], gap, speed, speed - leader_speed)


@dataclass(frozen=True)
class ResidualIdm(Gru):
    """The law and a small network by the score of their predictions."""

    hidden: int = 16

    def label(self, residual: str) -> str:
        """How tables name the method; its residual is the network."""
        return "One law and a small network, trained to predict"

    def network(self, simulator: Simulator) -> RecurrentDriver:
        """What is trained, with its first weights."""
        prefix = self.objective.residual_prefix_steps
        return LawfulDriver(simulator, self.hidden, self.latent, prefix)
