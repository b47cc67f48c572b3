"""An evaluation in the W&B run of its training: summary, tables, figures."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from asbc.evaluation.results import PROTOCOLS, Evaluation
from asbc.training.loggers import wandb_identity

SCORES = ("rmse", "es", "crps")


def log_evaluation(evaluation: Evaluation, run: Path, output: Path) -> bool:
    """Add an evaluation to the run's W&B run; False if the run was not logged to W&B.

    Args:
        evaluation: the results.
        run: run folder of train.py.
        output: the evaluation's folder, with its figures.
    """
    identity = wandb_identity(run)
    if identity is None:
        return False
    import wandb

    with wandb.init(
        id=identity["id"],
        project=identity["project"],
        entity=identity["entity"],
        mode="offline" if identity["offline"] else "online",
        dir=run,
        resume="allow",
    ) as session:
        figures = sorted((output / "figures").glob("*.png"))
        session.log(
            {
                "eval/windows": wandb.Table(dataframe=plain_table(evaluation.windows)),
                "eval/drivers": wandb.Table(dataframe=driver_table(evaluation)),
                **{f"eval/{path.stem}": wandb.Image(str(path)) for path in figures},
            }
        )
        session.summary.update(dict(summary_values(evaluation.metrics)))
    return True


def summary_values(metrics: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """The scores of each protocol under the name W&B shows, e.g. eval/all_windows/es_s."""
    for protocol in PROTOCOLS:
        for name, value in metrics[protocol].items():
            if isinstance(value, (int, float)) and math.isfinite(value):
                yield f"eval/{protocol}/{name}", value


def driver_table(evaluation: Evaluation) -> pd.DataFrame:
    """A row per driver: mean scores over its windows and posterior mean of each parameter."""
    scores = [f"{score}_{x}" for score in SCORES for x in "sva"]
    means = evaluation.windows.groupby("pair_id")[scores].mean()
    cases = evaluation.cases
    theta = pd.DataFrame(
        cases.theta.mean(1),
        index=pd.Index(cases.pair_id.astype(str), name="pair_id"),
        columns=[f"posterior mean {name}" for name in cases.names],
    )
    means.index = means.index.astype(str)
    return plain_table(means.join(theta).reset_index())


def plain_table(table: pd.DataFrame) -> pd.DataFrame:
    """The same with plain strings and floats, the types W&B tables know."""
    return table.astype(
        {
            name: float if pd.api.types.is_numeric_dtype(column) else str
            for name, column in table.items()
        }
    )
