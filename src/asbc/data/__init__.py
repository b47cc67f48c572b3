"""Everything upstream of the simulator: the pairs table, its loaders, splits and windows."""

from asbc.data.pairs import Pairs
from asbc.data.source import DataSource, Splits
from asbc.data.summary import write_summary
from asbc.data.windows import EvaluationWindows, LeaderWindows

__all__ = [
    "DataSource",
    "EvaluationWindows",
    "LeaderWindows",
    "Pairs",
    "Splits",
    "write_summary",
]
