"""Encoder: a forward and backward pass against the stock transformer of the same sizes.

Batch 128 x 75 x 3, training mode, one thread, CPU time. The two are timed in turn, and the table
shows the medians of many turns, so that other work on the machine touches both alike. "Stock" is
`nn.TransformerEncoder` (d = 64, 2 layers, 4 heads, FFN 4d, GELU, `batch_first`) behind a linear
projection and a [CLS] token.
"""

import statistics
import time

import torch
from common import parse, parser_of, report
from torch import Tensor, nn

from asbc.posterior.encoder import LocalGlobalEncoder

BATCH, STEPS, INPUTS, DIM, DROPOUT = 128, 75, 3, 64, 0.2
TURNS = 15


class StockEncoder(nn.Module):
    """The same sizes from torch's own parts."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.project = nn.Linear(INPUTS, DIM)
        self.cls = nn.Parameter(0.02 * torch.randn(DIM))
        layer = nn.TransformerEncoderLayer(
            DIM, 4, 4 * DIM, dropout=dropout, activation="gelu", batch_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, 2)

    def forward(self, states: Tensor) -> Tensor:
        tokens = self.project(states)
        return self.encoder(torch.cat([self.cls.expand(len(states), 1, -1), tokens], 1))[:, 0]


def pass_milliseconds(encoder: nn.Module, states: Tensor) -> float:
    """CPU time of one forward and backward pass."""
    start = time.process_time()
    encoder(states).square().sum().backward()
    elapsed = time.process_time() - start
    encoder.zero_grad()
    return 1e3 * elapsed


def measure(turns: int) -> str:
    """The table, in Markdown."""
    torch.manual_seed(0)
    states = torch.randn(BATCH, STEPS, INPUTS)
    lines = ["| dropout | stock, ms | ours, ms | ratio |", "|---:|---:|---:|---:|"]
    for dropout in (DROPOUT, 0.0):
        encoders = [StockEncoder(dropout), LocalGlobalEncoder(dropout=dropout)]
        times: list[list[float]] = [[], []]
        for turn in range(turns + 2):
            for encoder, results in zip(encoders, times, strict=True):
                elapsed = pass_milliseconds(encoder, states)
                if turn >= 2:  # the first ones warm up
                    results.append(elapsed)
        stock, ours = (statistics.median(results) for results in times)
        lines.append(f"| {dropout} | {stock:.0f} | {ours:.0f} | {stock / ours:.2f} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, print, and publish where asked."""
    parser = parser_of(__doc__)
    parser.add_argument("--turns", type=int, default=TURNS)
    arguments = parse(parser)
    report(__doc__, measure(arguments.turns), arguments.publish)


if __name__ == "__main__":
    main()
