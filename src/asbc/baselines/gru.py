"""A recurrent network that drives by itself: no law, no parameters, the same objective.

It shows how well recorded drivers can be predicted at all from what ASBC sees: the context, and
the samples right before a window that a residual process would continue from. It reads the context
into a state, goes through those samples, and then drives: in each step it sees gap, speed,
approach rate and its last acceleration, and moves the part of the acceleration that no law
explains (all of it, where there is none) towards a level, with noise,

    r_t = k r_(t-1) + (1 - k) m + d e_t,    e_t ~ N(0, 1),

where k, m and d are outputs of the network. A few normal numbers, drawn once for a whole window,
are among its inputs: they stand for what is not known about the driver.
"""

from dataclasses import dataclass, field
from typing import ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asbc.baselines.method import Fitted, Task
from asbc.data.history import FIRST, LATEST, context_start, context_states
from asbc.data.pairs import Pairs
from asbc.data.windows import EvaluationWindows, gather
from asbc.evaluation.predict import window_streams
from asbc.predictive.objective import Predictive
from asbc.predictive.recorded_fit import RecordedModel, fit_recorded
from asbc.predictive.recorded_windows import Examples
from asbc.simulator import Rollout, Simulator
from asbc.simulator.black_box import require_likelihood
from asbc.simulator.kinematics import Kinematics, LaggedKinematics
from asbc.simulator.simulator import SMALLEST_GAP
from asbc.utils.checks import check_integer, check_number
from asbc.utils.random import key, standard_normal

INPUTS = 6  # of a step, see `_inputs`
# Outputs before training: a residual that lasts about two seconds, with little noise.
KEPT, SPREAD = 2.0, -2.0


class RecurrentDriver(RecordedModel):
    """Reads a context and drives on.

    Args:
        simulator: time step, kinematics and bounds of the acceleration.
        hidden: size of the network's states.
        latent: numbers drawn once for a window.
        prefix_steps: samples before a window that are seen besides the context.
    """

    def __init__(self, simulator: Simulator, hidden: int, latent: int, prefix_steps: int) -> None:
        super().__init__()
        self.simulator, self.latent, self.prefix_steps = simulator, latent, prefix_steps
        self.read = nn.GRU(INPUTS, hidden, batch_first=True)
        self.begin = nn.Linear(hidden, hidden)
        self.cell = nn.GRUCell(INPUTS + latent, hidden)
        self.out = nn.Linear(hidden, 3)

    def law(self, gap: Tensor, speed: Tensor, leader_speed: Tensor) -> Tensor:
        """The part of the acceleration that a law explains: none of it."""
        return torch.zeros_like(gap)

    def predict(self, examples: Examples, draws: int, seed: int) -> Rollout:
        """Rollouts (window, draw, step), with gradients to the weights."""
        states = cast(Tensor, examples.states)  # it is given single contexts only
        rule = examples.kinematics
        return self.drive(states, examples.pairs, examples.windows, draws, seed, rule)

    def drive(
        self,
        states: Tensor,
        pairs: Pairs,
        windows: EvaluationWindows,
        draws: int,
        seed: int,
        kinematics: LaggedKinematics | None = None,
    ) -> Rollout:
        """Rollouts of windows, each series (window, draw, horizon + 1).

        Args:
            states: (window, steps, 3) contexts.
            pairs: where the windows are.
            windows: which pair and start each window has.
            draws: rollouts of each.
            seed: the noise is a function of it and of each window's pair and start.
            kinematics: how gaps change in each window; None: as the simulator says.
        """
        pair, start, horizon = windows
        noise = standard_normal(
            window_streams(pairs, windows, seed), len(pair) * draws, self.latent + horizon + 1
        )
        kind, steps = noise[:, : self.latent], noise[:, self.latent :].t()
        acceleration = F.pad(states[..., 1].diff(dim=1) / self.simulator.dt, (1, 0))
        gap, speed, approach_rate = states.unbind(-1)
        context = self.read(_inputs(gap, speed, approach_rate, acceleration))[0][:, -1]
        rows = torch.arange(len(pair)).repeat_interleave(draws)
        hidden = torch.tanh(self.begin(context))[rows]
        for back in range(self.prefix_steps, 0, -1):
            seen = _inputs(*_before(pairs, pair, start, back))[rows]
            hidden = self.cell(torch.cat([seen, kind], -1), hidden)
        leader = gather(pairs.leader_speed, pairs.offsets, pair, start, horizon + 1)[rows].t()
        gap, speed = (x[pairs.offsets[pair] + start][rows] for x in (pairs.gap, pairs.speed))
        last = [series[rows] for series in _before(pairs, pair, start, 1)]
        rule = self.simulator.kinematics if kinematics is None else kinematics.of(rows)
        rollout = self._roll(hidden, kind, steps, leader, gap, speed, last, rule)
        return Rollout(*(series.unflatten(0, (len(pair), draws)) for series in rollout))

    def _roll(
        self,
        hidden: Tensor,
        kind: Tensor,
        noise: Tensor,
        leader: Tensor,
        gap: Tensor,
        speed: Tensor,
        last: list[Tensor],
        kinematics: Kinematics,
    ) -> Rollout:
        """Drive behind leaders (steps, rows) from a gap and a speed, after the sample `last`."""
        dt = self.simulator.dt
        distances = kinematics.leader_distance(leader, dt)
        acceleration = last[3]
        residual = acceleration - self.law(last[0], last[1], last[1] - last[2])
        gaps, speeds, accelerations = [gap], [speed], []
        for t in range(len(leader)):
            seen = _inputs(gap, speed, speed - leader[t], acceleration)
            hidden = self.cell(torch.cat([seen, kind], -1), hidden)
            kept, level, spread = self.out(hidden).unbind(-1)
            kept, spread = torch.sigmoid(kept + KEPT), F.softplus(spread + SPREAD)
            residual = kept * residual + (1 - kept) * level + spread * noise[t]
            acceleration = self.law(gap, speed, leader[t]) + residual
            acceleration = acceleration.clamp(*self.simulator.acceleration_bounds)
            acceleration = torch.maximum(acceleration, speed / -dt)
            accelerations.append(acceleration)
            if t < len(distances):
                following = speed.add(acceleration, alpha=dt).clamp_min(0)
                gap = gap + distances[t] - kinematics.follower_distance(speed, following, dt)
                speed = following
                gaps.append(gap)
                speeds.append(speed)
        gap, speed, acceleration = map(torch.stack, (gaps, speeds, accelerations))
        return Rollout(
            gap=gap.t(),
            speed=speed.t(),
            approach_rate=(speed - leader).t(),
            acceleration=acceleration.t(),
            collided=(gap <= 0).any(0),
        )


def _before(pairs: Pairs, pair: Tensor, start: Tensor, back: int) -> list[Tensor]:
    """Gap, speed, approach rate and acceleration `back` samples before each start, (window,) each.

    Where the recording begins later, its first sample stands in, without its acceleration: that
    of the start itself lies in the window.
    """
    at = pairs.offsets[pair] + (start - back).clamp(min=0)
    speed = pairs.speed[at]
    acceleration = torch.where(start >= back, pairs.acceleration[at], 0.0)
    return [pairs.gap[at], speed, speed - pairs.leader_speed[at], acceleration]


def _inputs(gap: Tensor, speed: Tensor, approach_rate: Tensor, acceleration: Tensor) -> Tensor:
    """What the network sees of a state, (..., INPUTS), each of order one."""
    gap = gap.clamp_min(SMALLEST_GAP)
    return torch.stack(
        [
            gap / 20,
            gap.log() - 2,
            speed / 10,
            gap / (speed + 1) / 3 - 1,
            approach_rate / 2,
            acceleration,
        ],
        dim=-1,
    )


@dataclass(frozen=True)
class NetworkDrives:
    """Predictions of a trained network, from the context that an evaluation asks for.

    Attributes:
        model: the network.
        context: `first` or `latest`, see `asbc.data.history`.
        context_steps: samples of context.
        draws: rollouts of each window.
    """

    model: RecurrentDriver
    context: str
    context_steps: int
    draws: int

    @torch.no_grad()
    def predict(
        self,
        pairs: Pairs,
        windows: EvaluationWindows,
        seed: int,
        kinematics: LaggedKinematics | None = None,
    ) -> Rollout:
        """One rollout per window and draw, each series (window, draw, horizon + 1)."""
        begin = context_start(self.context, windows.start, self.context_steps)
        states = context_states(pairs, windows.pair, begin, self.context_steps)
        return self.model.drive(states, pairs, windows, self.draws, seed, kinematics)


@dataclass(frozen=True)
class Gru:
    """No law: a recurrent network by the score of its predictions.

    Args:
        objective: score, windows and stopping rule; its learning rate is that of `learning_rate`.
        learning_rate: peak of one cycle; the network starts from nothing.
        hidden: size of its states.
        latent: numbers drawn once for a window.
    """

    contexts: ClassVar = (FIRST, LATEST)

    objective: Predictive = field(default_factory=Predictive)
    learning_rate: float = 3e-3
    hidden: int = 48
    latent: int = 4

    def __post_init__(self) -> None:
        check_number("baseline.learning_rate", self.learning_rate, above=0)
        check_integer("baseline.hidden", self.hidden, minimum=1)
        check_integer("baseline.latent", self.latent, minimum=0)

    def label(self, residual: str) -> str:
        """How tables name the method; it has no residual model."""
        return "GRU without a law, trained to predict"

    def network(self, simulator: Simulator) -> RecurrentDriver:
        """What is trained, with its first weights."""
        prefix = self.objective.residual_prefix_steps
        return RecurrentDriver(simulator, self.hidden, self.latent, prefix)

    def fit(self, task: Task) -> Fitted:
        """Train on the training drivers and stop by the validation drivers."""
        require_likelihood(task.simulator, f"baseline={type(self).__name__.lower()}", "gradients")
        recorded, validation = self.objective.examples(
            *task.train_and_validation(), task.context_steps, task.simulator
        )
        torch.manual_seed(key(task.seed, "weights"))
        model = self.network(task.simulator)
        details = fit_recorded(
            model,
            self.objective,
            recorded,
            self.objective.grids(validation),
            self.learning_rate,
            task.seed,
        )
        drives = NetworkDrives(model.eval(), task.context, task.context_steps, task.samples)
        simulator = task.simulator.taught(None, recorded.lags)
        return Fitted(simulator, drives, task.test, details)
