"""Pictures of a population: its joint distribution, and what its drivers do behind a leader."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from asbc.population.population import Population
from asbc.reporting.figures.case_study import draw_posterior
from asbc.reporting.figures.style import (
    COLOURS,
    DOUBLE,
    LABELS,
    LEADER,
    OBSERVED,
    new_figure,
    style,
    symbol,
)
from asbc.simulator import Rollout

# Points per panel of the pair plot; more only make the file larger.
SHOWN_DRAWS = 5000
SERIES = {"gap": "s", "speed": "v", "acceleration": "a"}


def population_figure(population: Population, rng: np.random.Generator) -> Figure:
    """Pair plot of pooled draws below the diagonal, their correlation matrix above it."""
    units = [unit.replace("^2", "²") for unit in population.units]
    labels = [f"{symbol(n)} ({u})" for n, u in zip(population.names, units, strict=True)]
    pooled = population.theta
    shown = pooled if len(pooled) <= SHOWN_DRAWS else population.sample(SHOWN_DRAWS, rng)
    with style():
        figure = new_figure(DOUBLE, DOUBLE)
        part: Any = figure.subfigures()
        part.suptitle(f"{population.drivers:,} drivers, {len(pooled):,} pooled draws", fontsize=9)
        draw_posterior(part, labels, shown.numpy(), COLOURS[0])
    return figure


def new_drivers_figure(
    rollout: Rollout, leader_speed: Tensor, dt: float, observed: Mapping[str, Tensor]
) -> Figure:
    """Bands of new drivers behind a leader, and the recorded follower.

    Args:
        rollout: drives of new drivers, each series (driver, step).
        leader_speed: (step,).
        dt: time step (s).
        observed: the recorded follower's gap, speed and acceleration, each (step,).
    """
    time = np.arange(len(leader_speed)) * dt
    with style():
        figure = new_figure(DOUBLE, 4.8)
        axes = figure.subplots(3, 1, sharex=True)
        for ax, (name, variable) in zip(axes, SERIES.items(), strict=True):
            series = getattr(rollout, name)
            low, lower, middle, upper, high = torch.quantile(
                series, torch.tensor([0.025, 0.25, 0.5, 0.75, 0.975]), dim=0
            ).numpy()
            fill = {"color": COLOURS[0], "linewidth": 0}
            ax.fill_between(time, low, high, alpha=0.2, **fill, label="95% of new drivers")
            ax.fill_between(time, lower, upper, alpha=0.35, **fill, label="50%")
            ax.plot(time, middle, color=COLOURS[0], label="median")
            ax.plot(time, observed[name], color=OBSERVED, lw=1.0, label="recorded follower")
            if name == "speed":
                ax.plot(time, leader_speed, "--", color=LEADER, label="leader")
            ax.set(ylabel=LABELS[variable], xlim=(time[0], time[-1]))
            _limit(ax, low, high, observed[name].numpy())
        figure.align_ylabels()
        axes[-1].set_xlabel("time (s)")
        handles, labels = axes[1].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=len(labels))
    return figure


def _limit(ax: Axes, low: np.ndarray, high: np.ndarray, observed: np.ndarray) -> None:
    """Room for the recording and 98% of the band: a moment's emergency braking sets no scale."""
    bottom = min(np.quantile(low, 0.01), observed.min())
    top = max(np.quantile(high, 0.99), observed.max())
    margin = 0.08 * max(top - bottom, 1e-6)
    ax.set_ylim(bottom - margin, top + margin)
