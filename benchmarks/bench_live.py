"""Live: a driver followed step by step.

CPU time of one thread. `update` takes a sample and compares the driver, every 5 s, with what was
predicted; that is spread over several steps, and "most" is the dearest of them. The posterior of
now is encoded when it is first asked for, then drawn from. The networks have the default sizes of
`experiment=history` (eight segments are known all the time) and of the paper's model; how well
they are trained does not change what they cost.
"""

import time
from collections.abc import Callable

import numpy as np
import torch
from common import drive, parse, parser_of, peak_memory, report

from asbc.config import build, compose
from asbc.live import Live
from asbc.trained_model import Model

HORIZON, DRIVES, DRAWS = 50, 200, 500


def untrained(name: str, overrides: list[str]) -> Model:
    """A network and simulator of the configuration."""
    config = compose("train", overrides)
    torch.manual_seed(0)
    posterior = build(config.estimator).posterior.eval()
    context = "first" if posterior.pool is None else "all"
    return Model(posterior, build(config.simulator), 75, name, context=context)


def timed(function: Callable[..., object], *arguments: object) -> float:
    """CPU milliseconds of one call."""
    start = time.process_time_ns()
    function(*arguments)
    return (time.process_time_ns() - start) / 1e6


def follow(model: Model, steps: int) -> dict[str, np.ndarray]:
    """CPU milliseconds of each call, by what is called, once everything is known."""
    known = 8 * model.context_steps
    pair = drive(model.simulator, 1, known + steps).pair(0)
    samples = torch.stack([pair[n] for n in ("gap", "speed", "leader_speed")], dim=1).tolist()
    live = Live(model)
    for sample in samples[:known]:
        live.update(*sample)
    updates, posteriors = [], []
    for sample in samples[known:]:
        updates.append(timed(live.update, *sample))
        posteriors.append(timed(lambda: live.now.context))
    plan = [10.0] * HORIZON
    some = range(min(steps, 40))
    return {
        "update": np.array(updates),
        "posterior of now": np.array(posteriors),
        "both": np.array(updates) + posteriors,
        f"{DRAWS} draws": np.array([timed(live.posterior, DRAWS) for _ in some]),
        f"{DRIVES} drives of {HORIZON} steps": np.array(
            [timed(live.predict, plan, DRIVES) for _ in some]
        ),
    }


def measure(steps: int) -> str:
    """The table, in Markdown."""
    lines = [
        "| model | residual | what | CPU ms, mean | median | most |",
        "|---|---|---|---:|---:|---:|",
    ]
    bounded = ["transform=bounded"]  # no draw has to be made again
    models = {"all that is known": ["experiment=history"], "latest 15 s (paper)": bounded}
    for label, overrides in models.items():
        for residual in ("gaussian", "matern"):
            model = untrained(residual, [*overrides, f"residual={residual}"])
            for what, cost in follow(model, steps).items():
                numbers = (cost.mean(), np.median(cost), cost.max())
                cells = " | ".join(f"{x:.1f}" for x in numbers)
                lines.append(f"| {label} | {residual} | {what} | {cells} |")
    return "\n".join([*lines, "", f"{steps} steps of 0.2 s. {peak_memory()}"])


def main() -> None:
    """Measure, print, and publish where asked."""
    parser = parser_of(__doc__)
    parser.add_argument("--steps", type=int, default=500, help="time steps")
    arguments = parse(parser)
    report(__doc__, measure(arguments.steps), arguments.publish)


if __name__ == "__main__":
    main()
