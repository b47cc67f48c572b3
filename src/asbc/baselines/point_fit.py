"""Least-squares calibration: what practitioners do today."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from asbc.baselines.method import Fitted, Task
from asbc.data.pairs import Pairs
from asbc.data.windows import LeaderWindows, gather, leader_windows
from asbc.errors import InputError
from asbc.simulator import Prefix, Prior, Simulator
from asbc.simulator.black_box import require_likelihood
from asbc.simulator.prior import Marginal
from asbc.utils.random import stream

# Starts are kept this share of the box away from its sides, where the logit is flat.
MARGIN = 1e-3
# Gradient steps of the residual process's fit.
HYPER_STEPS = 150


def minimise(
    loss: Callable[[Tensor], Tensor],
    start: Tensor,
    low: Tensor,
    high: Tensor,
    steps: int,
    learning_rate: float = 0.1,
) -> tuple[Tensor, Tensor]:
    """Best points (problem, dim) and losses (problem,) seen by Adam on the logit of the box.

    Args:
        loss: points (problem, dim) to losses (problem,), each of its own point only.
        start: (problem, dim) inside the box.
        low, high: (dim,) the box.
        steps: gradient steps.
        learning_rate: of the first step; falls to 0 along a cosine.

    Example:
        >>> start, low, high = torch.tensor([[0.5]]), torch.zeros(1), torch.ones(1)
        >>> best, _ = minimise(lambda x: (x[:, 0] - 0.25) ** 2, start, low, high, steps=200)
        >>> round(float(best), 2)
        0.25
    """
    share = ((start - low) / (high - low)).clamp(MARGIN, 1 - MARGIN)
    position = torch.logit(share.double()).requires_grad_()
    adam = torch.optim.Adam([position], lr=learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adam, steps)
    best, least = start.clone(), torch.full((len(start),), torch.inf, dtype=torch.float64)
    for _ in range(steps):
        point = low + (high - low) * torch.sigmoid(position).to(start.dtype)
        value = loss(point)
        better = value.detach() < least
        least = torch.where(better, value.detach().double(), least)
        best = torch.where(better[:, None], point.detach(), best)
        adam.zero_grad()
        value.sum().backward()
        assert position.grad is not None
        # One diverging problem must not stop the others.
        position.grad.nan_to_num_(0.0, 0.0, 0.0)
        adam.step()
        schedule.step()
    return best, least


def fit_hyperparameters(
    log_likelihood: Callable[[Tensor], Tensor],
    problems: int,
    centre: Tensor,
    low: Tensor,
    high: Tensor,
    steps: int,
) -> Tensor:
    """Maximum-likelihood hyperparameters (problem, p) in a box of positive numbers.

    Args:
        log_likelihood: hyperparameters (problem, p) to (problem,).
        problems: how many are fitted side by side.
        centre: (p,) where to start.
        low, high: (p,) the box.
        steps: gradient steps, on the log scale.
    """
    best, _ = minimise(
        lambda log_hyper: -log_likelihood(log_hyper.exp()),
        centre.log().expand(problems, -1),
        low.log(),
        high.log(),
        steps,
    )
    return best.exp()


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


@dataclass(frozen=True)
class PointFit:
    """The theta whose noise-free simulation comes closest to the observed gap.

    Every driver and start is optimised in one batch, with gradients through the rollout. The
    predictive spread is that of the residual process, fitted to what the law leaves unexplained.

    Args:
        pooled: one theta for all drivers, from the known pairs; otherwise one for each test
            driver, from its context.
        starts: starting points per fit, drawn from the prior.
        steps: gradient steps.
    """

    pooled: bool = False
    starts: int = 10
    steps: int = 200

    def __post_init__(self) -> None:
        for name in ("starts", "steps"):
            if getattr(self, name) < 1:
                raise InputError(f"baseline.{name}={getattr(self, name)}; expected at least 1")

    def label(self, residual: str) -> str:
        """How tables name the method."""
        return f"Point fit {'pooled' if self.pooled else 'per driver'} ({residual})"

    def fit(self, task: Task) -> Fitted:
        """Fit the law to gaps, then the residual process to its residuals."""
        require_likelihood(task.simulator, "baseline=point_fit")
        pairs, steps = (task.known if self.pooled else task.test), task.context_steps
        if self.pooled:
            windows = leader_windows(pairs, steps, stride=steps)
            problem = torch.zeros_like(windows.pair)
        else:
            # One window per pair, its context: nothing later fits a stride that long.
            windows = leader_windows(pairs, steps, stride=int(pairs.lengths.max()))
            problem = windows.pair
        law, error = self._fit_law(task, pairs, windows, problem)
        states = observed_states(pairs, windows).unflatten(0, (len(law), -1))
        theta = fitted_residual(task.simulator, law, states)
        repeated = theta[:, None].expand(-1, task.samples, -1)
        return Fitted(
            task.simulator,
            repeated.expand(len(task.test), -1, -1),
            task.test,
            {"rmse_gap": float(error.mean().sqrt()), "fits": len(law)},
        )

    def _fit_law(
        self, task: Task, pairs: Pairs, windows: LeaderWindows, problem: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The best start's parameters (problem, law) and squared gap error (problem,)."""
        simulator = law_only(task.simulator)
        count = int(problem.max()) + 1
        rng = stream(task.seed, "point fit")
        start = simulator.prior.sample(count * self.starts, rng)
        gap = gather(pairs.gap, pairs.offsets, windows.pair, windows.start, task.context_steps)
        best, error = minimise(
            lambda theta: _gap_error(simulator, theta, windows, gap, problem),
            start,
            simulator.prior.low,
            simulator.prior.high,
            self.steps,
        )
        error, chosen = error.reshape(count, self.starts).min(dim=1)
        return best.reshape(count, self.starts, -1)[torch.arange(count), chosen], error


def _gap_error(
    simulator: Simulator, theta: Tensor, windows: LeaderWindows, gap: Tensor, problem: Tensor
) -> Tensor:
    """Mean squared gap error (problem * start,) over the windows of each problem."""
    count = int(problem.max()) + 1
    by_start = theta.unflatten(0, (count, -1))[problem]  # (window, start, dim)
    starts = by_start.shape[1]

    def repeat(value: Tensor) -> Tensor:
        return value.repeat_interleave(starts, dim=0)

    rollout = simulator.rollout(
        by_start.flatten(0, 1),
        repeat(windows.leader_speed),
        repeat(windows.gap),
        repeat(windows.speed),
        stream(0, "noise-free"),
        check=False,
    )
    error = (rollout.gap - repeat(gap)).square().mean(dim=1).unflatten(0, (-1, starts))
    total = error.new_zeros(count, starts).index_add(0, problem, error)
    return (total / torch.bincount(problem).unsqueeze(1)).flatten()


def observed_states(pairs: Pairs, windows: LeaderWindows) -> Tensor:
    """Observed states (window, steps, 3) of the windows."""
    steps = windows.leader_speed.shape[1]
    gap, speed = (
        gather(column, pairs.offsets, windows.pair, windows.start, steps)
        for column in (pairs.gap, pairs.speed)
    )
    return torch.stack([gap, speed, speed - windows.leader_speed], dim=-1)
