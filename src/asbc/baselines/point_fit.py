"""Least-squares calibration: what practitioners do today."""

from dataclasses import dataclass

import torch
from torch import Tensor

from asbc.baselines.method import Fitted, Task
from asbc.baselines.noise_free import fitted_residual, law_only
from asbc.baselines.optimise import minimise
from asbc.data.pairset import PairSet
from asbc.data.windows import LeaderWindows, gather, leader_windows
from asbc.simulator import Simulator
from asbc.utils.checks import InputError
from asbc.utils.random import stream


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
        self, task: Task, pairs: PairSet, windows: LeaderWindows, problem: Tensor
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


def observed_states(pairs: PairSet, windows: LeaderWindows) -> Tensor:
    """Observed states (window, steps, 3) of the windows."""
    steps = windows.leader_speed.shape[1]
    gap, speed = (
        gather(column, pairs.offsets, windows.pair, windows.start, steps)
        for column in (pairs.gap, pairs.speed)
    )
    return torch.stack([gap, speed, speed - windows.leader_speed], dim=-1)
