"""How leaders drive: speeds that swing between slower and faster, from queues to motorways."""

from dataclasses import dataclass

import numpy as np

FRAME_RATE = 25
SHORTEST_RAMP = 2.0  # s

Range = tuple[float, float]


@dataclass(frozen=True)
class Regime:
    """Traffic in which a leader alternates between a slow and a fast speed, without jerks.

    Args:
        slow: range of the slower speed, m/s; what is drawn below 0 is standing.
        fast: range of the faster speed, m/s.
        start: range of the first speed, m/s.
        peak: range of the largest acceleration of a change, m/s^2.
        slow_hold, fast_hold: range of the time for which a speed is kept, s.
    """

    slow: Range
    fast: Range
    start: Range
    peak: Range
    slow_hold: Range
    fast_hold: Range


STOP_AND_GO = Regime((-0.5, 7.0), (8.0, 14.0), (5.0, 11.0), (0.4, 1.1), (1.0, 8.0), (1.0, 8.0))
QUEUE = Regime((-4.0, 1.5), (1.0, 7.0), (-2.0, 4.0), (0.3, 1.3), (2.0, 40.0), (0.5, 6.0))
LIGHTS = Regime((-9.0, 5.0), (7.0, 19.0), (-6.0, 14.0), (0.8, 2.6), (2.0, 35.0), (3.0, 25.0))
CONGESTED = Regime((3.0, 12.0), (8.0, 20.0), (4.0, 18.0), (0.3, 1.5), (1.0, 8.0), (1.0, 10.0))
MOTORWAY = Regime((10.0, 26.0), (20.0, 36.0), (15.0, 34.0), (0.2, 1.6), (1.0, 12.0), (2.0, 20.0))
FREE = Regime((22.0, 33.0), (26.0, 40.0), (24.0, 38.0), (0.1, 0.6), (3.0, 20.0), (5.0, 30.0))
# From a queue that hardly moves to a motorway with room: together from 0 to 40 m/s.
REGIMES = {
    "queue": QUEUE,
    "lights": LIGHTS,
    "stop_and_go": STOP_AND_GO,
    "congested": CONGESTED,
    "motorway": MOTORWAY,
    "free": FREE,
}


def leader_speeds(regime: Regime, count: int, frames: int, rng: np.random.Generator) -> np.ndarray:
    """Speed profiles (count, frames) at the camera's rate.

    Example:
        >>> speed = leader_speeds(REGIMES["free"], 3, 500, np.random.default_rng(0))
        >>> speed.shape, bool(speed.min() > 20)
        ((3, 500), True)
    """
    profiles = np.empty((count, frames))
    for profile in profiles:
        filled, speed, fast = 0, max(0.0, rng.uniform(*regime.start)), bool(rng.integers(2))
        while filled < frames:
            fast = not fast
            target = max(0.0, rng.uniform(*(regime.fast if fast else regime.slow)))
            # Of a smooth transition, which lasts 1.5 dv / peak.
            ramp = max(SHORTEST_RAMP, 1.5 * abs(target - speed) / rng.uniform(*regime.peak))
            phase = np.linspace(0, 1, int(ramp * FRAME_RATE), endpoint=False)
            seconds = rng.uniform(*(regime.fast_hold if fast else regime.slow_hold))
            rise = speed + (target - speed) * phase**2 * (3 - 2 * phase)
            hold = np.full(int(seconds * FRAME_RATE), target)
            piece = np.concatenate([rise, hold])[: frames - filled]
            profile[filled : filled + len(piece)] = piece
            filled, speed = filled + len(piece), target
    return profiles
