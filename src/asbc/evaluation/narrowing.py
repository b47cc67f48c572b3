"""What seconds are worth: how a posterior narrows as they arrive, and which it attends to.

For posteriors of everything known about a driver. A driver's seconds arrive in the order driven;
after so many of them the posterior is that of all so far, as `evaluation.context=all` has it.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from asbc.data.history import drives, histories
from asbc.data.pairs import Pairs
from asbc.data.segments import Segments
from asbc.evaluation.sbc import prior_variance
from asbc.evaluation.window_draws import sample_contexts
from asbc.posterior.posterior import Posterior
from asbc.simulator import Prior

# Seconds after which posteriors are looked at, as far as drivers have them.
SECONDS = (3.0, 5.0, 10.0, 15.0, 30.0, 45.0, 60.0, 90.0, 120.0)
# Of a point less than so many drivers have reached, nothing is shown.
FEWEST = 5
# Drivers looked at, at most: enough for medians.
DRIVERS = 200
# Ends of the bins of age, in seconds before the latest sample.
AGES = (1.0, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0, 90.0, 120.0)


@dataclass(frozen=True)
class Narrowing:
    """How posteriors narrow, and where their attention is.

    Attributes:
        names: parameters.
        seconds: known so far, (point,).
        drivers: how many have so many, (point,).
        spread: posterior over prior standard deviation: quartiles over drivers, (3, point, dim).
        age: ends of the bins of attention, seconds before the latest sample, (bin + 1,).
        attention: mean attention to a second of a bin, 1 if all known seconds had the same; NaN
            where there is no such second, (bin,).
        earlier: the same for earlier drives of unknown age; NaN without any.
    """

    names: tuple[str, ...]
    seconds: np.ndarray
    drivers: np.ndarray
    spread: np.ndarray
    age: np.ndarray
    attention: np.ndarray
    earlier: float

    def to_dict(self) -> dict[str, Any]:
        """The numbers of `metrics.json`."""
        medians = self.spread[1]
        return {
            "seconds": self.seconds.tolist(),
            "drivers": self.drivers.tolist(),
            "spread": {name: medians[:, i].tolist() for i, name in enumerate(self.names)},
            "age": self.age.tolist(),
            "attention": self.attention.tolist(),
            "attention_to_earlier_drives": self.earlier,
        }


def narrowing(
    posterior: Posterior, prior: Prior, pairs: Pairs, context_steps: int, draws: int, seed: int
) -> Narrowing | None:
    """How the posteriors of these drivers narrow; None for drivers with too little data.

    Args:
        posterior: one with a pool.
        prior: what spreads are compared with.
        pairs: the drivers, at most the first `DRIVERS` of them.
        context_steps: samples of the longest segment.
        draws: of each posterior.
        seed: of these.
    """
    orders = [order for order, _ in drives(pairs)][:DRIVERS]
    points = []
    for seconds in SECONDS:
        known = _known(posterior, pairs, orders, round(seconds / pairs.dt), context_steps)
        if known is not None:
            points.append((seconds, known))
    if not points:
        return None
    scale = prior_variance(prior).sqrt()
    spread, counts = [], []
    for seconds, (names, segments) in points:
        keys = [f"{name} after {seconds:g} s" for name in names]
        theta = sample_contexts(posterior, segments, keys, draws, seed).theta
        each = (theta.std(dim=1) / scale).double().numpy()
        spread.append(np.quantile(each, [0.25, 0.5, 0.75], axis=0))
        counts.append(len(names))
    everything = _everything(posterior, pairs, orders, context_steps)
    attention, earlier = _attention(posterior, everything, pairs.dt)
    return Narrowing(
        names=prior.names,
        seconds=np.array([seconds for seconds, _ in points]),
        drivers=np.array(counts),
        spread=np.stack(spread, axis=1),
        age=np.array([0.0, *AGES]),
        attention=attention,
        earlier=earlier,
    )


def _known(
    posterior: Posterior, pairs: Pairs, orders: list[list[int]], samples: int, steps: int
) -> tuple[list[str], Segments] | None:
    """Names and histories of the drivers after so many samples; None of too few drivers."""
    assert posterior.pool is not None
    shortest, lengths = posterior.pool.shortest, pairs.lengths.tolist()
    names, pair, end = [], [], []
    for order in orders:
        left = samples
        for index in order:
            if left <= lengths[index]:
                # A drive that has just begun says nothing yet.
                if left >= shortest or index != order[0]:
                    names.append(f"driver {pairs.follower[index]}")
                    pair.append(index)
                    end.append(left)
                break
            left -= lengths[index]
    if len(names) < FEWEST:
        return None
    found = histories(pairs, pair, end, steps, shortest, posterior.pool.max_segments)
    return names, found


def _everything(
    posterior: Posterior, pairs: Pairs, orders: list[list[int]], steps: int
) -> Segments:
    """All of each driver."""
    assert posterior.pool is not None
    last = [order[-1] for order in orders]
    end = pairs.lengths[last]
    return histories(pairs, last, end, steps, posterior.pool.shortest, posterior.pool.max_segments)


def _attention(posterior: Posterior, segments: Segments, dt: float) -> tuple[np.ndarray, float]:
    """Attention to a second by its age, and to one of earlier drives, relative to the mean."""
    share = posterior.attention_to_samples(segments)  # (driver, J, T)
    step = torch.arange(share.shape[2])
    inside = step < segments.lengths[..., None]
    relative = (share * segments.total[:, None, None])[inside].double().numpy()
    last = (segments.lengths[..., None] - 1 - step) * dt
    age = (segments.age[..., None] + last)[inside].double().numpy()
    bins = np.digitize(age, [0.0, *AGES]) - 1
    known = ~np.isnan(age)
    means = [
        relative[known & (bins == i)].mean() if (known & (bins == i)).any() else np.nan
        for i in range(len(AGES))
    ]
    return np.array(means), float(relative[~known].mean()) if (~known).any() else float("nan")
