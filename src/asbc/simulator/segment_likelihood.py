"""The likelihood of all that is known of drivers: one trajectory each, or a set of segments.

Given theta, segments are independent: between them nobody watched, and the residual process starts
afresh in each. Their likelihood is the product of the segments' own.
"""

import torch
from torch import Tensor

from asbc.data.segments import Segments
from asbc.simulator.simulator import Simulator
from asbc.utils.checks import require_shape


def known_log_likelihood(simulator: Simulator, theta: Tensor, states: Tensor | Segments) -> Tensor:
    """log p(x | theta), (driver, draw) in float64.

    Args:
        simulator: its likelihood.
        theta: (driver, draw, dim).
        states: one trajectory of each driver (driver, step, 3), or its segments.
    """
    require_shape("theta", theta, (len(states), None, simulator.dim))
    if isinstance(states, Tensor):
        return simulator.log_likelihood(theta, states.unsqueeze(1))
    total = torch.zeros(theta.shape[:2], dtype=torch.float64)
    driver = torch.nonzero(states.present)[:, 0]
    rows, lengths = states.rows()
    # Segments of one length at a time: a process knows nothing of padding.
    for length in lengths.unique().tolist():
        some = torch.nonzero(lengths == length).flatten()
        own = driver[some]
        value = simulator.log_likelihood(theta[own], rows[some, None, :length])
        total.index_add_(0, own, value)
    return total
