"""The leader bank: recorded and augmented leader windows, with features and a sampling law."""

import logging
from functools import cached_property

import numpy as np
import torch
from scipy.cluster.vq import kmeans2
from torch import Tensor

from asbc.data.pairs import Pairs
from asbc.data.windows import LeaderWindows, leader_windows
from asbc.design.augment import Augmentation, Plausibility, acceleration_of
from asbc.errors import InputError
from asbc.utils.checks import check_integer
from asbc.utils.random import stream, uniform

log = logging.getLogger(__name__)

# Candidates are drawn in batches of a fixed size: a smaller cap gives a prefix of a larger one.
BATCH = 5000
# A candidate closer than this (m/s) to the window it was made from, in all samples, is a copy.
COPY = 0.01
# Cells of alike leaders, by k-means of their features, which count up to this many spreads.
CELLS, FARTHEST = 40, 3.0
# Give up once this many candidates per wanted window were tried.
MAX_TRIES = 20


class LeaderBank:
    """Real windows cut from the training pairs and synthetic ones made from them.

    A synthetic window keeps its source's observed follower state (gap, speed): augmentation is
    mild, so that state stays plausible behind it. Rescaling or warping a leader that stands gives
    the same leader again: such copies are left out, since a window among its own copies looks
    typical however rare it is. Window ids count real windows, then synthetic.

    Args:
        pairs: the training split; windows must not come from any other.
        steps: window length W, the encoder's context length.
        stride: samples between the starts of real windows.
        synthetic_cap: number of synthetic windows to make.
        augmentation: how candidates are made; None for the paper's values.
        filters: which candidates are kept; None for the paper's values.
        seed: the bank is a pure function of the pairs, the settings and this.
    """

    def __init__(
        self,
        pairs: Pairs,
        steps: int,
        stride: int = 50,
        synthetic_cap: int = 10_000,
        augmentation: Augmentation | None = None,
        filters: Plausibility | None = None,
        seed: int = 0,
    ) -> None:
        check_integer("data.context_steps", steps, minimum=2)
        check_integer("bank.stride", stride, minimum=1)
        check_integer("bank.synthetic_cap", synthetic_cap, minimum=0)
        self.dt = pairs.dt
        self.real = leader_windows(pairs, steps, stride)
        if not len(self.real.gap):
            raise InputError(
                f"no leader window of {steps} samples fits into the {len(pairs)} training pairs; "
                "lower data.context_steps"
            )
        self.filters = filters or Plausibility()
        self.envelope = self.filters.envelope(self.real.leader_speed, self.dt)
        self.synthetic, self.rejected = self._synthesise(
            augmentation or Augmentation(), synthetic_cap, seed
        )
        raw = leader_features(self.real.leader_speed, self.dt)
        self._centre = raw.mean(dim=0)
        spread = raw.std(dim=0, unbiased=False)
        # A feature that never varies carries no distance.
        self._spread = torch.where(spread > 1e-6, spread, 1.0)

    def __len__(self) -> int:
        return len(self.real.gap) + len(self.synthetic.gap)

    @cached_property
    def windows(self) -> LeaderWindows:
        """All windows; a window's position is its id."""
        pairs = zip(self.real, self.synthetic, strict=True)
        return LeaderWindows(*(torch.cat(fields) for fields in pairs))

    @cached_property
    def window_features(self) -> Tensor:
        """Standardised features of all windows, (windows, 10), by id."""
        return self.features(self.windows)

    def features(self, windows: LeaderWindows) -> Tensor:
        """Features phi, standardised over the real windows, (windows, 10)."""
        return (leader_features(windows.leader_speed, self.dt) - self._centre) / self._spread

    def is_synthetic(self, ids: Tensor) -> Tensor:
        """Which ids name a synthetic window, bool."""
        return ids >= len(self.real.gap)

    def sample(self, count: int, synthetic_share: float, rng: np.random.Generator) -> Tensor:
        """Ids (count,) from (1 - alpha) real + alpha synthetic, alpha = `synthetic_share`."""
        if not 0 <= synthetic_share <= 1:
            raise InputError(f"synthetic_share={synthetic_share}; expected a share in [0, 1]")
        real, synthetic = len(self.real.gap), len(self.synthetic.gap)
        if synthetic_share > 0 and not synthetic:
            raise InputError(
                "the leader bank holds no synthetic window (candidates rejected: "
                f"{self.rejected}); use a mixing share of 0, raise bank.synthetic_cap or loosen "
                "bank.filters"
            )
        draws = uniform(rng, count, 2, dtype=torch.float64)
        chosen = draws[:, 0] < synthetic_share
        size = torch.where(chosen, synthetic, real)
        return torch.where(chosen, real, 0) + (draws[:, 1] * size).long()

    def sample_spread(self, count: int, share: float, rng: np.random.Generator) -> Tensor:
        """Ids (count,) of recorded windows, a `share` of them from cells of alike leaders.

        Each cell is as likely as any other, so that leaders whom few drivers had are met as often
        as common ones; the rest is drawn window by window.
        """
        each = uniform(rng, count, 3, dtype=torch.float64)
        order, first, size = self._cells
        cell = (each[:, 1] * len(size)).long()
        inside = order[first[cell] + (each[:, 2] * size[cell]).long()]
        anywhere = (each[:, 2] * len(order)).long()
        return torch.where(each[:, 0] < share, inside, anywhere)

    @cached_property
    def _cells(self) -> tuple[Tensor, Tensor, Tensor]:
        """Recorded windows cell by cell, and the first and the number of each cell's."""
        features = self.window_features[: len(self.real.gap)].clamp(-FARTHEST, FARTHEST)
        real = features.double().numpy()
        # Begins at windows that are spread over the recordings, no two of them alike.
        begin = np.unique(real[:: max(1, len(real) // CELLS)], axis=0)
        _, label = kmeans2(real, begin, minit="matrix")
        order = torch.from_numpy(np.argsort(label, kind="stable"))
        size = torch.from_numpy(np.bincount(label))
        size = size[size > 0]
        return order, size.cumsum(0) - size, size

    def _synthesise(
        self, augmentation: Augmentation, cap: int, seed: int
    ) -> tuple[LeaderWindows, dict[str, int]]:
        """Up to `cap` candidates that pass every filter, and how many each filter rejected."""
        accepted = [self.real.take(torch.zeros(0, dtype=torch.int64))]
        rejected: dict[str, int] = {}
        found = tried = 0
        while found < cap and tried < MAX_TRIES * cap:
            rng = stream(seed, "leader-bank", tried)
            source = torch.from_numpy(rng.integers(len(self.real.gap), size=BATCH))
            batch = self.real.take(source)
            speed = augmentation.apply(batch.leader_speed, self.dt, rng)
            passes = self.filters.accept(speed, self.dt, self.envelope)
            passes["no copy"] = (speed - batch.leader_speed).abs().amax(dim=1) > COPY
            keep = torch.nonzero(torch.stack(list(passes.values())).all(dim=0)).flatten()
            accepted.append(batch._replace(leader_speed=speed).take(keep[: cap - found]))
            found += len(accepted[-1].gap)
            tried += BATCH
            for name, ok in passes.items():
                rejected[name] = rejected.get(name, 0) + int((~ok).sum())
        if found < cap:
            log.warning(
                "leader bank: %d of %d synthetic windows after %d candidates (rejected by: %s)",
                *(found, cap, tried, rejected),
            )
        return LeaderWindows(
            *(torch.cat(field) for field in zip(*accepted, strict=True))
        ), rejected


def leader_features(leader_speed: Tensor, dt: float) -> Tensor:
    """Unstandardised features phi, (windows, 10).

    Mean, standard deviation, minimum and maximum of speed, the same of acceleration, and the mean
    absolute first difference of each.
    """
    acceleration = acceleration_of(leader_speed, dt)
    columns = []
    for signal in (leader_speed, acceleration):
        columns += [signal.mean(1), signal.std(1, unbiased=False), signal.amin(1), signal.amax(1)]
    columns += [signal.diff(dim=1).abs().mean(1) for signal in (leader_speed, acceleration)]
    return torch.stack(columns, dim=1)
