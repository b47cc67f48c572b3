"""Forward simulator and likelihood: car-following law, residual process, kinematics and prior."""

from asbc.simulator.prior import Prior
from asbc.simulator.residuals import Prefix
from asbc.simulator.rollout import Rollout
from asbc.simulator.simulator import Simulator

__all__ = ["Prefix", "Prior", "Rollout", "Simulator"]
