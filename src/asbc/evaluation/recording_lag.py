"""How late a recording reports speeds.

Trackers filter: a recorded speed lags behind the positions of the same recording. Lyft's followers
are reported half a second late, so that in a start from standstill the recorded gap and the one
that follows from recorded speeds come to differ by metres. With lags tau of leader and follower,

    change of the gap = change by the recorded speeds + tau_l dv_l - tau_f dv_f

over any stretch, and what a driver's context shows of it is a regression on two columns. Contexts
in which nobody changes speed say nothing; there the lags stay near those of the recordings that a
posterior was trained on, or 0.
"""

import torch
from torch import Tensor

from asbc.data.history import context_states
from asbc.data.pairs import Pairs
from asbc.data.segments import Segments
from asbc.data.windows import evaluation_windows
from asbc.simulator.kinematics import NO_LAG, Kinematics, LaggedKinematics, Lags

# How far a recording's lags are from those expected (s), and recorded gaps from what they should
# be (m), standard deviations; chosen on validation drivers of NGSIM and Lyft.
SPREAD, ERROR = 0.3, 0.3
LARGEST = 1.0  # s


def recording_lags(
    states: Tensor | Segments, rule: Kinematics, dt: float, expected: Lags = NO_LAG
) -> Tensor:
    """Lags (s) of leader and follower in each context, (context, 2) float64.

    Args:
        states: gap, speed and approach rate, (context, steps, 3), or segments.
        rule: how speeds move the gap if they are not late.
        dt: time step (s).
        expected: lags of contexts that do not show them.

    Example:
        >>> from asbc.simulator.kinematics import PaperKinematics
        >>> time = 0.2 * torch.arange(75)
        >>> leader = 8 + 3 * torch.sin(time)  # as recorded
        >>> speed = 8 + 3 * torch.sin(time - 1)
        >>> rule = PaperKinematics()
        >>> late = LaggedKinematics(rule, torch.tensor([0.1]), torch.tensor([0.5]))
        >>> change = late.leader_distance(leader[:, None], 0.2)[:, 0]
        >>> change = change - late.follower_distance(speed[:-1], speed[1:], 0.2)
        >>> gap = 20 + torch.cat([torch.zeros(1), change.cumsum(0)])
        >>> states = torch.stack([gap, speed, speed - leader], dim=-1)[None]
        >>> recording_lags(states, rule, 0.2).round(decimals=2)
        tensor([[0.1000, 0.5000]], dtype=torch.float64)
    """
    segments = states if isinstance(states, Segments) else Segments.of(states)
    rows, lengths = segments.rows()
    rows = rows.double()
    error = unexplained(rows, rule, dt)
    speed = rows[..., 1]
    columns = torch.stack([speed - rows[..., 2], -speed, error], dim=-1)
    known = (torch.arange(rows.shape[1]) < lengths[:, None])[..., None]
    centre = columns.where(known, 0.0).sum(1, keepdim=True) / lengths[:, None, None]
    columns = (columns - centre).where(known, 0.0)
    driver = torch.nonzero(segments.present)[:, 0]
    products = torch.zeros(len(segments), 3, 3, dtype=torch.float64)
    products.index_add_(0, driver, columns.transpose(1, 2) @ columns)
    prior = torch.tensor(expected, dtype=torch.float64)
    precision = products[:, :2, :2] / ERROR**2 + torch.eye(2, dtype=torch.float64) / SPREAD**2
    target = products[:, :2, 2] / ERROR**2 + prior / SPREAD**2
    return torch.linalg.solve(precision, target).clamp(-LARGEST, LARGEST)


def expected_lags(pairs: Pairs, rule: Kinematics, steps: int) -> Lags:
    """The lags that all stretches of `steps` samples of these pairs show together."""
    pair, start, _ = evaluation_windows(pairs, steps - 1, stride=steps)
    states = context_states(pairs, pair, start, steps)[None]
    lengths = torch.full(states.shape[:2], steps)
    together = Segments(states, lengths, torch.zeros(states.shape[:2]))
    leader, follower = recording_lags(together, rule, pairs.dt)[0].tolist()
    return leader, follower


def lagged(
    states: Tensor | Segments,
    rule: Kinematics,
    dt: float,
    expected: Lags,
    dtype: torch.dtype,
) -> LaggedKinematics:
    """How recorded gaps change by recorded speeds in each context.

    Args:
        states, rule, dt, expected: as for `recording_lags`.
        dtype: of what drives.
    """
    lags = recording_lags(states, rule, dt, expected).to(dtype)
    return LaggedKinematics(rule, *lags.unbind(-1))


def unexplained(states: Tensor, kinematics: Kinematics, dt: float) -> Tensor:
    """Changes of the gap since the first sample that speeds do not explain, (row, steps).

    Args:
        states: gap, speed and approach rate, (row, steps, 3).
        kinematics: how speeds move the gap; it takes time first, and its lags are of the rows.
        dt: time step (s).
    """
    gap, speed, approach = (column.T for column in states.unbind(-1))
    leader = kinematics.leader_distance(speed - approach, dt)
    follower = kinematics.follower_distance(speed[:-1], speed[1:], dt)
    change = gap.diff(dim=0) - (leader - follower)
    return torch.nn.functional.pad(change.cumsum(dim=0), (0, 0, 1, 0)).T
