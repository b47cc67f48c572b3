"""Every score of a predicted window, declared once in `SCORES`, and intervals of their means.

A score compares the samples of one variable (gap, speed or acceleration) with what was observed
and gives one number per window. The columns of `windows.parquet`, the names of `metrics.json`,
the tables, the dashboard and the monitor all follow from `SCORES`: to add a score, write its
function and add a line there, or give it as `evaluation.extra_scores`.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from asbc.errors import InputError


@dataclass(frozen=True)
class Variable:
    """What is predicted: the series of a rollout, in words its name too, and its unit."""

    series: str
    unit: str


# By the paper's symbol, which ends the name of a metric: es_s is the Energy Score of the gap.
VARIABLES = {
    "s": Variable("gap", "m"),
    "v": Variable("speed", "m/s"),
    "a": Variable("acceleration", "m/s²"),
}

# The two tables of scores in a report.
HEADLINE, FURTHER = "headline", "further"


@dataclass(frozen=True)
class Score:
    """One number per window and variable, and how reports show its mean over windows.

    Args:
        name: its columns are called `<name>_s`, `<name>_v` and `<name>_a`.
        label: what heads its columns in tables.
        function: of samples (window, sample, step), the samples of each step in ascending order
            (window, step, sample), and the observation (window, step); returns (window,).
        table: `HEADLINE` beside RMSE and ES, `FURTHER` beside CRPS and coverage, or None for a
            score whose mean says nothing: it stays in `windows.parquet`.
        best: "low", "high", or the value that a right prediction has.
        percent: whether tables write it in percent.
        title: its name in figures; the label if empty.
        about: what the report says of it, after the label.

    Example:
        >>> Score("es", "ES", energy_score).columns
        ('es_s', 'es_v', 'es_a')
    """

    name: str
    label: str
    function: Callable[[Tensor, Tensor, Tensor], Tensor]
    table: str | None = HEADLINE
    best: str | float = "low"
    percent: bool = False
    title: str = ""
    about: str = ""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z]\w*", self.name):
            raise InputError(f"score {self.name!r}: expected a name of letters, digits and _")
        if self.table not in (HEADLINE, FURTHER, None):
            raise InputError(
                f"score {self.name}: table={self.table!r}; expected {HEADLINE}, {FURTHER} or None"
            )
        if isinstance(self.best, str) and self.best not in ("low", "high"):
            raise InputError(
                f"score {self.name}: best={self.best!r}; expected low, high or a number"
            )
        if not self.title:
            object.__setattr__(self, "title", self.label)

    @property
    def columns(self) -> tuple[str, ...]:
        """The metrics it gives, one per variable."""
        return tuple(f"{self.name}_{x}" for x in VARIABLES)

    def loss(self, value: float) -> float:
        """How far a mean is from the best one: the smaller, the better.

        Example:
            >>> coverage = Score("coverage95", "95%", crps, best=0.95)
            >>> round(coverage.loss(0.9), 3)
            0.05
        """
        if isinstance(self.best, str):
            return value if self.best == "low" else -value
        return abs(value - self.best)


def rmse_of_mean(samples: Tensor, observed: Tensor) -> Tensor:
    """Root mean squared error of the predictive mean over the window's steps, (window,).

    Example:
        >>> rmse_of_mean(torch.tensor([[[1.0, 4.0], [3.0, 4.0]]]), torch.tensor([[2.0, 0.0]]))
        tensor([2.8284], dtype=torch.float64)
    """
    mean = samples.mean(dim=1, dtype=torch.float64)
    return (mean - observed).square().mean(dim=-1).sqrt()


def energy_score(samples: Tensor, observed: Tensor) -> Tensor:
    """The paper's Energy Score of each window taken as one vector of steps, (window,).

    mean_i |y_i - y| - 1/(2 n^2) sum_ij |y_i - y_j|, with the distances between samples from one
    Gram matrix per window.

    Example:
        >>> energy_score(torch.tensor([[[0.0], [2.0]]]), torch.tensor([[1.0]]))
        tensor([0.5000], dtype=torch.float64)
    """
    count = samples.shape[1]
    to_observed = torch.linalg.vector_norm(samples - observed.unsqueeze(1), dim=-1)
    accuracy = to_observed.mean(dim=1, dtype=torch.float64)
    spread = _sum_of_distances(samples) / (2 * count**2)
    return accuracy - spread


def _sum_of_distances(samples: Tensor) -> Tensor:
    """sum_ij |y_i - y_j| per window, (window,) float64."""
    # Centring first keeps the cancellation in |a|^2 + |b|^2 - 2ab relative to the spread of the
    # samples, not to their level (a gap of 40 m with a spread of 0.1 m).
    centred = samples - samples.mean(dim=1, keepdim=True)
    square = centred.square().sum(dim=-1)
    distance = torch.baddbmm(
        square.unsqueeze(1) + square.unsqueeze(2), centred, centred.transpose(1, 2), alpha=-2
    )
    distance.diagonal(dim1=1, dim2=2).zero_()
    return distance.clamp_(min=0).sqrt_().sum(dim=(1, 2), dtype=torch.float64)


def sorted_by_step(samples: Tensor) -> Tensor:
    """The samples of each step in ascending order, (window, step, sample)."""
    # numpy sorts float32 with vector instructions, several times faster than torch on CPU.
    # Always a copy: the samples of a single window may lie in memory in this order already.
    by_step = np.array(samples.transpose(1, 2).numpy(), order="C")
    by_step.sort(axis=-1)
    return torch.from_numpy(by_step)


def crps(ordered: Tensor, observed: Tensor) -> Tensor:
    """Continuous ranked probability score averaged over the steps, (window,).

    Args:
        ordered: samples as `sorted_by_step` returns them.
        observed: (window, step).

    Example:
        >>> crps(torch.tensor([[[0.0, 2.0]]]), torch.tensor([[1.0]]))
        tensor([0.5000], dtype=torch.float64)
    """
    count = ordered.shape[-1]
    accuracy = (ordered - observed.unsqueeze(-1)).abs().mean(dim=-1, dtype=torch.float64)
    # sum_ij |x_i - x_j| = 2 sum_k (2k - n - 1) x_(k); centring keeps float32 exact enough.
    rank_weight = 2 * torch.arange(1, count + 1, dtype=ordered.dtype) - (count + 1)
    centred = ordered - ordered[..., count // 2, None]
    spread = (centred @ rank_weight).double() / count**2
    return (accuracy - spread).mean(dim=-1)


def central_coverage(ordered: Tensor, observed: Tensor, level: float) -> Tensor:
    """Share of steps whose observation lies in the central interval of that level, (window,).

    The ends are the linearly interpolated sample quantiles.
    """
    low, high = (_quantile(ordered, (1 + sign * level) / 2) for sign in (-1, 1))
    return ((observed >= low) & (observed <= high)).double().mean(dim=-1)


def _quantile(ordered: Tensor, probability: float) -> Tensor:
    position = probability * (ordered.shape[-1] - 1)
    below = int(position)
    above = min(below + 1, ordered.shape[-1] - 1)
    return torch.lerp(ordered[..., below], ordered[..., above], position - below)


def pit(ordered: Tensor, observed: Tensor) -> Tensor:
    """Probability integral transform of every step, (window, step): uniform when calibrated.

    A tie with some samples (a standing vehicle) counts half of them.
    """
    ordered = ordered.contiguous()
    target = observed.unsqueeze(-1).to(ordered.dtype).contiguous()
    below = torch.searchsorted(ordered, target, right=False)
    up_to = torch.searchsorted(ordered, target, right=True)
    return ((below + up_to).double() / (2 * ordered.shape[-1])).squeeze(-1)


COVERAGE_LEVELS = (0.5, 0.8, 0.95)


def coverage_name(level: float) -> str:
    """The column name of a coverage level.

    Example:
        >>> coverage_name(0.95)
        'coverage95'
    """
    return f"coverage{round(100 * level)}"


def _coverage(level: float) -> Score:
    share = round(100 * level)
    return Score(
        coverage_name(level),
        f"{share}%",
        lambda samples, ordered, observed: central_coverage(ordered, observed, level),
        table=FURTHER,
        best=level,
        percent=True,
        title=f"coverage of {share}% intervals",
    )


SCORES = (
    Score(
        "rmse",
        "RMSE",
        lambda samples, ordered, observed: rmse_of_mean(samples, observed),
        about="root mean squared error of the predictive mean",
    ),
    Score(
        "es",
        "ES",
        lambda samples, ordered, observed: energy_score(samples, observed),
        title="Energy Score",
        about="Energy Score of the whole predictive distribution",
    ),
    Score(
        "crps",
        "CRPS",
        lambda samples, ordered, observed: crps(ordered, observed),
        table=FURTHER,
    ),
    # At the window's last step, the hardest one to predict.
    Score(
        "pit",
        "PIT",
        lambda samples, ordered, observed: pit(ordered[:, -1:], observed[:, -1:])[:, 0],
        table=None,
        best=0.5,
    ),
    *(_coverage(level) for level in COVERAGE_LEVELS),
)


def headline(scores: Sequence[Score] = SCORES) -> dict[str, str]:
    """What heads each column of the headline table, by metric.

    Example:
        >>> list(headline().items())[2:4]
        [('rmse_a', 'RMSE a'), ('es_s', 'ES s')]
    """
    return {
        metric: f"{score.label} {x}"
        for score in scores
        if score.table == HEADLINE
        for metric, x in zip(score.columns, VARIABLES, strict=True)
    }


def named(name: str, scores: Sequence[Score] = SCORES) -> Score:
    """The score of that name.

    Example:
        >>> named("es").title
        'Energy Score'
    """
    return next(score for score in scores if score.name == name)


def score_all(
    samples: Tensor, observed: Tensor, scores: Sequence[Score] = SCORES
) -> dict[str, Tensor]:
    """Every score of one variable by name, each (window,).

    Args:
        samples: (window, sample, step).
        observed: (window, step).
        scores: which ones.
    """
    ordered = sorted_by_step(samples)
    values = {score.name: score.function(samples, ordered, observed) for score in scores}
    for name, value in values.items():
        if not isinstance(value, Tensor) or value.shape != samples.shape[:1]:
            shape = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise InputError(
                f"score {name}: its function returned {shape} for {len(samples)} windows; "
                "expected a tensor with one number per window"
            )
    return values


def pair_weights(pairs: int, replicates: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """How often each pair appears in each bootstrap data set, (replicate, pair)."""
    return rng.multinomial(pairs, np.full(pairs, 1 / pairs), size=replicates).astype(np.float64)


def bootstrap_interval(
    values: ArrayLike,
    pair: ArrayLike,
    replicates: int,
    rng: np.random.Generator,
    level: float = 0.95,
) -> NDArray[np.float64]:
    """Percentile interval of the mean over windows when pairs are resampled.

    Windows of one pair share a driver and a posterior, so resampling windows would give intervals
    that are too narrow: whole pairs are drawn with replacement.

    Args:
        values: (window,) or (window, column).
        pair: the pair each window belongs to, any labels.
        replicates: number of bootstrap data sets.
        rng: source of the resampling.
        level: coverage of the interval.

    Returns:
        (2,) or (2, column): lower and upper ends.
    """
    table = np.asarray(values, dtype=np.float64)
    columns = table.reshape(len(table), -1)
    labels, index = np.unique(np.asarray(pair), return_inverse=True)
    count = np.bincount(index, minlength=len(labels)).astype(np.float64)
    total = np.zeros((len(labels), columns.shape[1]))
    np.add.at(total, index, columns)
    weight = pair_weights(len(labels), replicates, rng)
    means = (weight @ total) / (weight @ count)[:, None]
    ends = np.quantile(means, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return ends.reshape(2, *table.shape[1:])
