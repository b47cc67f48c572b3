"""From a recording of vehicles to pairs: who follows whom, cut into segments and checked.

highD and NGSIM share this: their readers give `Following`, with positions smoothed on request.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from scipy.signal import savgol_filter

from asbc.data.source import Loaded, count_drops, min_samples, short_reason, whole_factor
from asbc.data.table import describe_row, motion_defects, validate_pairs
from asbc.errors import InputError

# Tracking noise at standstill; anything faster backwards is a wrong sign or a wrong track.
BACKWARD_NOISE = 0.5  # m/s
NO_LEADER, HIDDEN, UNKNOWN = 0, -1, -2
_REASONS = {
    NO_LEADER: "segments without a leader",
    HIDDEN: "segments whose leader is out of view",
    UNKNOWN: "segments whose leader id is unknown",
}
SMOOTHING_ORDER = 3  # of the polynomials fitted to positions
_SKIP = "or set data.skip_defects=true to leave such segments out"


@dataclass(frozen=True)
class Following:
    """A recording's rows, in any order: each a vehicle at a frame, and the vehicle it follows.

    Positions grow in the driving direction; `leader` 0 means none.
    """

    source: str  # file, for messages
    recording: str
    line: np.ndarray  # line of the file, for messages
    vehicle: np.ndarray
    leader: np.ndarray
    frame: np.ndarray
    frame_rate: float
    front: np.ndarray  # m
    length: np.ndarray  # m
    speed: np.ndarray  # m/s
    acceleration: np.ndarray  # m/s^2
    classes: Mapping[int, str]  # vehicle -> class

    def sort(self) -> "Following":
        """The same rows by vehicle and frame."""
        order = np.lexsort((self.frame, self.vehicle))
        columns = {k: v[order] for k, v in vars(self).items() if isinstance(v, np.ndarray)}
        return Following(**(vars(self) | columns))


def extract_pairs(
    data: Following, dt: float, min_duration: float, skip_defects: bool = False
) -> Loaded:
    """Segments in which a follower keeps one leader, every `dt` seconds, `min_duration` or longer.

    Frames are kept on one grid from the recording's first frame, so the same motion recorded at a
    higher rate gives the same samples.
    """
    data = data.sort()
    step = _frame_step(data)
    where = f"{data.source}: recording {data.recording}"
    every = step * whole_factor(dt, step / data.frame_rate, where)
    state, leader_row = _leaders(data, skip_defects)
    change = (np.diff(data.vehicle) != 0) | (np.diff(state) != 0) | (np.diff(data.frame) != step)
    first = np.concatenate([[True], change])
    segment = np.cumsum(first) - 1
    kind = state[first]
    on_grid = (data.frame - data.frame.min()) % every == 0
    samples = np.bincount(segment[on_grid], minlength=len(kind))
    short = samples < min_samples(dt, min_duration)
    drops = {reason: int((kind == code).sum()) for code, reason in _REASONS.items()}
    drops[short_reason(min_duration)] = int(((kind > 0) & short).sum())
    rows = np.flatnonzero(on_grid & (state > 0) & ~short[segment])
    table = _table(data, rows, leader_row[rows], segment[rows])
    table, mended = _mend(table, data.source, skip_defects)
    return Loaded(table.reset_index(drop=True), count_drops(drops, mended))


def combine(parts: Sequence[Loaded], source: str) -> Loaded:
    """The pairs of all recordings in one validated table, and all that was dropped."""
    tables = [part.table for part in parts if not part.table.empty]
    drops = count_drops(*(part.drops for part in parts))
    if not tables:
        return Loaded(pd.DataFrame(), drops)
    return Loaded(validate_pairs(pd.concat(tables, ignore_index=True), source), drops)


def savitzky_golay(data: Following, seconds: float) -> Following:
    """Positions fitted by cubics in a moving window; speed and acceleration are their derivatives.

    This keeps the three signals consistent, which the raw ones are not. Each unbroken track is
    filtered on its own; one shorter than the window stays as recorded.
    """
    window = 2 * int(seconds * data.frame_rate / 2) + 1
    if window <= SMOOTHING_ORDER + 1:
        raise InputError(
            f"data.smoothing={seconds:g} s is {window} samples; expected at least "
            f"{(SMOOTHING_ORDER + 2) / data.frame_rate:g} s, or null for none"
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
                data.front[start:stop],
                window,
                SMOOTHING_ORDER,
                deriv=derivative,
                delta=1 / data.frame_rate,
            )
    return replace(data, front=front, speed=speed, acceleration=acceleration)


def _frame_step(data: Following) -> int:
    """Frames between consecutive rows of a vehicle; more than 1 in a thinned-out file."""
    same = np.diff(data.vehicle) == 0
    steps = np.diff(data.frame)[same]
    if (steps == 0).any():
        at = np.flatnonzero(same)[np.argmax(steps == 0)] + 1
        raise InputError(
            f"{data.source}: vehicle {data.vehicle[at]} has frame {data.frame[at]} twice (line "
            f"{data.line[at]}); keep one row per vehicle and frame"
        )
    return int(np.bincount(steps).argmax()) if len(steps) else 1


def _leaders(data: Following, skip_defects: bool) -> tuple[np.ndarray, np.ndarray]:
    """Per row: the leader's id, or why there is none, and the row of the leader."""
    frame = data.frame - data.frame.min()
    span = int(frame.max()) + 1
    place = data.vehicle * span + frame  # ascending, as rows are sorted
    wanted = data.leader * span + frame
    row = np.searchsorted(place, wanted).clip(max=len(place) - 1)
    state = np.where(place[row] == wanted, data.leader, HIDDEN)
    unknown = ~np.isin(data.leader, np.unique(data.vehicle)) | (data.leader == data.vehicle)
    state[unknown] = UNKNOWN
    state[data.leader == 0] = NO_LEADER
    if not skip_defects and (state == UNKNOWN).any():
        at = int(np.argmax(state == UNKNOWN))
        raise InputError(
            f"{data.source}: vehicle {data.vehicle[at]} at frame {data.frame[at]} (line "
            f"{data.line[at]}) follows vehicle {data.leader[at]}, which is not another vehicle of "
            f"this recording; use 0 for no leader, {_SKIP}"
        )
    return state, row


def _table(
    data: Following, own: np.ndarray, lead: np.ndarray, segment: np.ndarray
) -> pd.DataFrame:
    """Pairs table of the given follower and leader rows, indexed by line of the file."""
    time = (data.frame[own] - data.frame.min()) / data.frame_rate
    # A start time makes ids unique when a follower meets the same leader twice.
    start = time[np.searchsorted(segment, segment)]
    ids = zip(data.vehicle[own], data.vehicle[lead], start, strict=True)
    return pd.DataFrame(
        {
            "recording": data.recording,
            "pair_id": [f"{follower}-{leader}@{begin:.1f}" for follower, leader, begin in ids],
            "follower_id": data.vehicle[own].astype(str),
            "time": time,
            "gap": data.front[lead] - data.length[lead] - data.front[own],
            "speed": data.speed[own],
            "leader_speed": data.speed[lead],
            "acceleration": data.acceleration[own],
            "follower_class": [data.classes[vehicle] for vehicle in data.vehicle[own].tolist()],
        },
        index=pd.Index(data.line[own], name="line"),
    )


def _mend(
    table: pd.DataFrame, source: str, skip_defects: bool
) -> tuple[pd.DataFrame, dict[str, int]]:
    """Standstill noise set to 0; impossible motion refused, or skipped and counted."""
    backward = (table[["speed", "leader_speed"]] < -BACKWARD_NOISE).any(axis=1)
    defects = {
        "segments with overlapping vehicles (gap <= 0)": (
            table["gap"] <= 0,
            "gap <= 0: the vehicles overlap; check positions and lengths",
        ),
        "segments with a vehicle driving backwards": (
            backward,
            f"speed below -{BACKWARD_NOISE} m/s: check the driving direction",
        ),
    }
    counts: dict[str, int] = {}
    bad_pairs: set[str] = set()
    for reason, (bad, advice) in defects.items():
        if bad.any() and not skip_defects:
            where = describe_row(table, int(np.argmax(bad.to_numpy())))
            raise InputError(f"{source}: {where}: {advice}, {_SKIP}")
        pairs = set(table.loc[bad, "pair_id"]) - bad_pairs
        counts[reason] = len(pairs)
        bad_pairs |= pairs
    table = table[~table["pair_id"].isin(bad_pairs)]
    speed, leader_speed = table["speed"], table["leader_speed"]
    noise = int((speed < 0).sum()) + int((leader_speed < 0).sum())
    counts["speed samples slightly below 0 set to 0"] = noise
    table = table.assign(speed=speed.clip(lower=0), leader_speed=leader_speed.clip(lower=0))
    jumping = _jumping(table, source, skip_defects)
    counts["segments that move as no road vehicle does"] = len(jumping)
    return table[~table["pair_id"].isin(jumping)], counts


def _jumping(table: pd.DataFrame, source: str, skip_defects: bool) -> set[str]:
    """The pairs to leave out for their motion; a wrong unit is refused whatever is wanted."""
    jumping = set()
    for row, message in motion_defects(table, source) if len(table) else ():
        if row is None:
            raise InputError(message)
        if not skip_defects:
            raise InputError(f"{message}, {_SKIP}")
        jumping.add(table["pair_id"].iloc[row])
    return jumping
