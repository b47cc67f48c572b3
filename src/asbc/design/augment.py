"""Leader-window augmentation and the checks that keep it plausible (the paper's appendix).

Three transformations of a recorded speed profile: A1 adds band-limited noise, A2 rescales the
speed, A3 warps time. Each candidate gets a random non-empty subset of them, so windows that stand
still, which noise would push below zero, still contribute through A2 and A3.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from asbc.errors import InputError
from asbc.utils.checks import check_integer, check_number
from asbc.utils.random import standard_normal, uniform


@dataclass(frozen=True)
class Augmentation:
    """Strength of the three transformations.

    The paper names `vel_jitter`, `acc_clip`, `jerk_clip` and `time_scale_range` without defining
    them; the readings below are ours. It gives no value for `rescale_max` (its beta_max) and the
    band.

    Args:
        vel_jitter: standard deviation over time of the added speed, m/s.
        band: frequencies that the added speed may contain, Hz.
        acc_clip: largest acceleration the added speed alone may contribute, m/s^2.
        jerk_clip: largest jerk it may contribute, m/s^3.
        rescale_max: speed is scaled by a factor in [1 - rescale_max, 1 + rescale_max].
        time_scale_range: smallest and largest local speed of the warped clock.
        warp_segments: number of affine pieces of the warp.
    """

    vel_jitter: float = 0.20
    band: tuple[float, float] = (0.02, 0.5)
    acc_clip: float = 2.5
    jerk_clip: float = 5.0
    rescale_max: float = 0.1
    time_scale_range: tuple[float, float] = (0.9, 1.1)
    warp_segments: int = 4

    def __post_init__(self) -> None:
        for name in ("vel_jitter", "acc_clip", "jerk_clip"):
            check_number(f"bank.augmentation.{name}", getattr(self, name), minimum=0)
        check_integer("bank.augmentation.warp_segments", self.warp_segments, minimum=1)
        low, high = self.band
        if not 0 <= low < high:
            raise InputError(f"bank.augmentation.band={[low, high]}; expected 0 <= low < high")
        low, high = self.time_scale_range
        if not 0 < low <= 1 <= high:
            raise InputError(
                f"bank.augmentation.time_scale_range={[low, high]}; expected 0 < low <= 1 <= high"
            )
        if not 0 <= self.rescale_max < 1:
            raise InputError(
                f"bank.augmentation.rescale_max={self.rescale_max}; expected a number in [0, 1)"
            )

    def apply(self, speed: Tensor, dt: float, rng: np.random.Generator) -> Tensor:
        """One augmented candidate per row of `speed` (windows, steps), unfiltered."""
        count, steps = speed.shape
        # 1 .. 7: a non-empty subset, one bit per transformation.
        subset = (1 + 7 * uniform(rng, count, 1)).long()
        warp = self.time_warp(count, steps, rng)
        scale = 1 + self.rescale_max * (2 * uniform(rng, count, 1) - 1)
        noise = self.speed_noise(count, steps, dt, rng)
        speed = torch.where(subset & 1 > 0, interpolate(speed, warp), speed)
        speed = torch.where(subset & 2 > 0, scale * speed, speed)
        return torch.where(subset & 4 > 0, speed + noise, speed)

    def speed_noise(self, count: int, steps: int, dt: float, rng: np.random.Generator) -> Tensor:
        """A1: Gaussian noise with frequencies inside the band only, (count, steps).

        Rows above a clip are scaled down as a whole: cutting peaks would add high frequencies.
        """
        frequency = torch.fft.rfftfreq(steps, dt)
        inside = (frequency > 0) & (frequency >= self.band[0]) & (frequency <= self.band[1])
        inside[-1] &= steps % 2 == 1  # the Nyquist bin has no phase
        bins = int(inside.sum())
        draws = standard_normal(rng, count, bins, 2)
        spectrum = torch.zeros(count, len(frequency), dtype=torch.complex64)
        # Each bin carries variance 4 c^2 / steps^2 of a real signal.
        unit = torch.complex(draws[..., 0], draws[..., 1])
        spectrum[:, inside] = unit * steps / (2 * max(bins, 1) ** 0.5)
        noise = self.vel_jitter * torch.fft.irfft(spectrum, n=steps)
        acceleration = acceleration_of(noise, dt)
        largest = acceleration.abs().amax(dim=1, keepdim=True).clamp(min=1e-12)
        jerk = jerk_of(acceleration, dt).abs().amax(dim=1, keepdim=True).clamp(min=1e-12)
        return noise * torch.minimum(self.acc_clip / largest, self.jerk_clip / jerk).clamp(max=1.0)

    def time_warp(self, count: int, steps: int, rng: np.random.Generator) -> Tensor:
        """A3: increasing piecewise-affine maps of [0, steps - 1] onto itself, (count, steps)."""
        low, high = self.time_scale_range
        slope = low + (high - low) * uniform(rng, count, self.warp_segments)
        # Slopes must average 1 to keep the end points; shrinking keeps them inside the range.
        slope = slope - slope.mean(dim=1, keepdim=True)
        up = (high - 1) / slope.amax(dim=1, keepdim=True).clamp(min=1e-12)
        down = (1 - low) / (-slope.amin(dim=1, keepdim=True)).clamp(min=1e-12)
        slope = 1 + slope * torch.minimum(up, down).clamp(max=1.0)
        piece = (steps - 1) / self.warp_segments
        knots = torch.nn.functional.pad(slope.cumsum(dim=1), (1, 0)) * piece
        time = torch.arange(steps)
        segment = (time / max(piece, 1e-12)).long().clamp(max=self.warp_segments - 1)
        warp = knots[:, segment] + slope[:, segment] * (time - segment * piece)
        warp[:, -1] = steps - 1
        return warp.clamp(0, steps - 1)


@dataclass(frozen=True)
class Plausibility:
    """The paper's five filters. Limits are inclusive.

    Args:
        max_acceleration: m/s^2.
        max_jerk: m/s^3.
        kinematic_tolerance: largest mismatch of speed step and acceleration, m/s.
        percentiles: of recorded speed and acceleration; every sample must lie between them.
    """

    max_acceleration: float = 10.0
    max_jerk: float = 20.0
    kinematic_tolerance: float = 0.5
    percentiles: tuple[float, float] = (1.0, 99.0)

    def __post_init__(self) -> None:
        for name in ("max_acceleration", "max_jerk", "kinematic_tolerance"):
            check_number(f"bank.filters.{name}", getattr(self, name), minimum=0)
        low, high = self.percentiles
        if not 0 <= low < high <= 100:
            raise InputError(
                f"bank.filters.percentiles={[low, high]}; expected 0 <= low < high <= 100"
            )

    def envelope(self, speed: Tensor, dt: float) -> Tensor:
        """Lowest and highest plausible (speed, acceleration) of recorded windows, (2, 2)."""
        share = torch.tensor([*self.percentiles], dtype=torch.float64) / 100
        columns = [speed.double().flatten(), acceleration_of(speed.double(), dt).flatten()]
        # numpy: torch.quantile refuses more than 16 million values.
        return torch.stack([torch.from_numpy(np.quantile(c, share)) for c in columns], dim=1)

    def accept(self, speed: Tensor, dt: float, envelope: Tensor) -> dict[str, Tensor]:
        """For each filter, which windows pass it, (windows,) bool."""
        # float64, so that a window stored as float32 gets the same answer when checked again
        speed = speed.double()
        acceleration = acceleration_of(speed, dt)
        mismatch = speed.diff(dim=1) - acceleration[:, 1:] * dt
        state = torch.stack([speed, acceleration], dim=-1)
        inside = (state >= envelope[0]) & (state <= envelope[1])
        return {
            "non-negative speed": (speed >= 0).all(dim=1),
            "acceleration": (acceleration.abs() <= self.max_acceleration).all(dim=1),
            "jerk": (jerk_of(acceleration, dt).abs() <= self.max_jerk).all(dim=1),
            "kinematics": (mismatch.abs() <= self.kinematic_tolerance).all(dim=1),
            "envelope": inside.flatten(1).all(dim=1),
        }


def acceleration_of(speed: Tensor, dt: float) -> Tensor:
    """Backward difference along the last axis; the first sample repeats the second."""
    step = speed.diff(dim=-1) / dt
    return torch.cat([step[..., :1], step], dim=-1)


def jerk_of(acceleration: Tensor, dt: float) -> Tensor:
    """Backward difference from the second sample on, (..., steps - 1)."""
    return acceleration.diff(dim=-1) / dt


def interpolate(values: Tensor, position: Tensor) -> Tensor:
    """`values` (windows, steps) at fractional positions, linear between samples."""
    left = position.long().clamp(max=values.shape[1] - 2)
    weight = position - left
    return torch.lerp(values.gather(1, left), values.gather(1, left + 1), weight)
