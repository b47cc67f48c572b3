"""The law alone: simulation without residuals, and the residuals it leaves behind."""

import numpy as np
import torch
from torch import Tensor

from asbc.baselines.optimise import fit_hyperparameters
from asbc.simulator import Prefix, Prior, Simulator
from asbc.simulator.prior import Marginal

HYPER_STEPS = 150


class NoResidual:
    """A residual process that is always 0 and has no parameters."""

    parameters: tuple[str, ...] = ()

    def sample(
        self,
        hyper: Tensor,
        steps: int,
        dt: float,
        rng: np.random.Generator,
        prefix: Prefix | None = None,
    ) -> Tensor:
        """Zeros (batch, steps)."""
        return hyper.new_zeros(hyper.shape[0], steps)

    def log_likelihood(
        self,
        residuals: Tensor,
        hyper: Tensor,
        dt: float,
        lower: Tensor | None = None,
        upper: Tensor | None = None,
    ) -> Tensor:
        """0 (...) where all residuals vanish, else -inf."""
        zero = (residuals == 0).all(-1)
        return torch.where(zero, 0.0, -torch.inf).double()


def law_only(simulator: Simulator) -> Simulator:
    """The same simulator without residuals; theta has the law's columns only."""
    law = {m.name: fields_of(m) for m in _law_marginals(simulator)}
    return Simulator(
        simulator.law,
        NoResidual(),
        Prior(law, {}),
        simulator.kinematics,
        simulator.dt,
        simulator.acceleration_bounds,
    )


def fields_of(marginal: Marginal) -> dict[str, str | float]:
    """A marginal as `Prior` takes it."""
    names = ("unit", "centre", "log_scale", "low", "high")
    return {name: getattr(marginal, name) for name in names}


def fitted_residual(simulator: Simulator, law: Tensor, states: Tensor) -> Tensor:
    """theta (problem, dim): the law's values with the residual process fitted to what is left.

    Args:
        simulator: its residual process is fitted by maximum likelihood, within the prior's range.
        law: (problem, law parameters).
        states: (problem, windows, T, 3) observed trajectories of each problem.
    """
    count = len(simulator.law.parameters)
    centre = torch.tensor([m.centre for m in simulator.prior.marginals[count:]])
    windows = states.shape[1]

    def log_likelihood(hyper: Tensor) -> Tensor:
        theta = torch.cat([law, hyper.to(law.dtype)], dim=1)
        each = theta[:, None].expand(-1, windows, -1)
        return simulator.log_likelihood(each, states).sum(1)

    low, high = simulator.prior.low[count:], simulator.prior.high[count:]
    hyper = fit_hyperparameters(log_likelihood, len(law), centre, low, high, HYPER_STEPS)
    return torch.cat([law, hyper.to(law.dtype)], dim=1)


def _law_marginals(simulator: Simulator) -> tuple[Marginal, ...]:
    return simulator.prior.marginals[: len(simulator.law.parameters)]
