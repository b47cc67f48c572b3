"""Smoothing of recorded positions, on request."""

from dataclasses import replace

import numpy as np
from scipy.signal import savgol_filter

from asbc.data.following import Following
from asbc.utils.checks import InputError

ORDER = 3


def savitzky_golay(data: Following, seconds: float) -> Following:
    """Positions fitted by cubics in a moving window; speed and acceleration are their derivatives.

    This keeps the three signals consistent, which the raw ones are not. Each unbroken track is
    filtered on its own; one shorter than the window stays as recorded.
    """
    window = 2 * int(seconds * data.frame_rate / 2) + 1
    if window <= ORDER + 1:
        raise InputError(
            f"data.smoothing={seconds:g} s is {window} samples; expected at least "
            f"{(ORDER + 2) / data.frame_rate:g} s, or null for none"
        )
    data = data.sort()
    breaks = (np.diff(data.vehicle) != 0) | (np.diff(data.frame) != 1)
    bounds = np.concatenate([[0], np.flatnonzero(breaks) + 1, [len(data.frame)]])
    front, speed, acceleration = data.front.copy(), data.speed.copy(), data.acceleration.copy()
    for start, stop in zip(bounds[:-1], bounds[1:], strict=True):
        if stop - start < window:
            continue
        for target, derivative in ((front, 0), (speed, 1), (acceleration, 2)):
            target[start:stop] = savgol_filter(
                data.front[start:stop], window, ORDER, deriv=derivative, delta=1 / data.frame_rate
            )
    return replace(data, front=front, speed=speed, acceleration=acceleration)
