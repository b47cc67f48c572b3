"""What a run's simulations cost: how many a second, and their share of its time."""

import pandas as pd

from asbc.run import Run


def cost_of(run: Run) -> str:
    """One line on the simulations of a run, from its `rounds.csv`."""
    return cost_text(pd.read_csv(run.rounds))


def cost_text(rounds: pd.DataFrame) -> str:
    """The line for a table with a row per round.

    Example:
        >>> rounds = {"simulations": [4000, 6000], "seconds_simulate": [1.0, 1.5]}
        >>> cost_text(pd.DataFrame(rounds | {"seconds_train": [4.0, 3.5]}))
        '6,000 simulations, 2,400 a second: 25% of 10 s'
    """
    seconds = rounds.filter(like="seconds_").sum()
    count, spent, total = (
        rounds["simulations"].max(),
        seconds.get("seconds_simulate", 0.0),
        seconds.sum(),
    )
    speed = count / max(spent, 1e-9)
    share = spent / max(total, 1e-9)
    return f"{count:,.0f} simulations, {speed:,.0f} a second: {share:.0%} of {total:.0f} s"
