"""Evaluation: the batched scorer against loops over windows.

Scores of all windows of 60 pairs x 500 samples. CPU time of one thread. Loops are timed on a few
windows and scaled up: one calls the same scorer window by window, the other is what one would
write with scoringrules.
"""

import numpy as np
import scoringrules
from common import cpu_seconds, drive, parse, parser_of, peak_memory, report, simulator_of
from torch import Tensor

from asbc.data.pairs import Pairs
from asbc.data.windows import EvaluationWindows, evaluation_windows
from asbc.evaluation.predict import predict_windows
from asbc.evaluation.protocol import observed_series, score_windows
from asbc.simulator import Simulator
from asbc.utils.random import stream

PAIRS, STEPS, DRAWS, LOOPED = 60, 331, 500, 20
PREFIX = (5, 1e-2, 0)  # steps, noise, seed


def loop_with_scoringrules(
    simulator: Simulator, theta: Tensor, pairs: Pairs, windows: EvaluationWindows
) -> None:
    """RMSE, ES, CRPS and coverage of one window after the other."""
    for i in range(len(windows.pair)):
        one = EvaluationWindows(windows.pair[i : i + 1], windows.start[i : i + 1], windows.horizon)
        rollout = predict_windows(simulator, theta, pairs, one, *PREFIX)
        observed = observed_series(pairs, one)
        for name in ("gap", "speed", "acceleration"):
            samples = getattr(rollout, name)[0, :, 1:].double().numpy()
            target = observed[name][0, 1:].double().numpy()
            np.sqrt(((samples.mean(0) - target) ** 2).mean())
            scoringrules.es_ensemble(target, samples, m_axis=0, v_axis=1)
            scoringrules.crps_ensemble(target, samples, m_axis=0).mean()
            ends = np.quantile(samples, [0.025, 0.1, 0.25, 0.75, 0.9, 0.975], axis=0)
            ((target >= ends[0]) & (target <= ends[-1])).mean()


def loop_with_same_scorer(
    simulator: Simulator, theta: Tensor, pairs: Pairs, windows: EvaluationWindows
) -> None:
    """The batched scorer given one window at a time."""
    score_windows(simulator, theta, pairs, windows, chunk=1)


def measure(pairs_count: int, looped: int) -> str:
    """The table, in Markdown."""
    lines = [
        "| residual | windows | method | CPU s | this / batched |",
        "|---|---:|---|---:|---:|",
    ]
    for residual in ("gaussian", "matern"):
        simulator = simulator_of(residual)
        pairs = drive(simulator, pairs_count, STEPS)
        draws = simulator.prior.sample(pairs_count * DRAWS, stream(0, "draws"))
        windows = evaluation_windows(pairs)
        few = EvaluationWindows(windows.pair[:looped], windows.start[:looped], windows.horizon)
        scale = len(windows.pair) / looped
        given = (simulator, draws.view(pairs_count, DRAWS, -1), pairs)
        loop_with_scoringrules(*given, few)  # compiles its kernels
        costs = {
            "batched": cpu_seconds(score_windows, *given, windows),
            "loop, same scorer": scale * cpu_seconds(loop_with_same_scorer, *given, few),
            "loop, scoringrules": scale * cpu_seconds(loop_with_scoringrules, *given, few),
        }
        lines += [
            f"| {residual} | {len(windows.pair)} | {name} | {cost:.1f} "
            f"| {cost / costs['batched']:.2f} |"
            for name, cost in costs.items()
        ]
    return "\n".join([*lines, "", peak_memory()])


def main() -> None:
    """Measure, print, and publish where asked."""
    parser = parser_of(__doc__)
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--looped", type=int, default=LOOPED, help="windows that loops score")
    arguments = parse(parser)
    report(__doc__, measure(arguments.pairs, arguments.looped), arguments.publish)


if __name__ == "__main__":
    main()
