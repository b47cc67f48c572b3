"""A quick look at real validation pairs while a run trains."""

from asbc.data.pairset import PairSet
from asbc.data.windows import evaluation_windows
from asbc.evaluation.draws import AmortizedPosterior, sample_pairs
from asbc.evaluation.protocol import VARIABLES, score_windows
from asbc.evaluation.settings import EvaluationSettings
from asbc.simulator import Simulator


def validation_scores(
    posterior: AmortizedPosterior,
    simulator: Simulator,
    validation: PairSet,
    context_steps: int,
    pairs: int = 20,
    samples: int = 100,
    first_start: int = 0,
) -> dict[str, float]:
    """RMSE and Energy Score of the paper's windows on the first `pairs` validation pairs.

    Windows start at sample `first_start` or later.

    Returns:
        `validation_rmse` and `validation_es`, the means over s, v and a, and both by variable.
        The noise is the same at every call, so rounds differ by their posterior only.
    """
    some = validation.select(range(min(pairs, len(validation))))
    draws = sample_pairs(posterior, some, context_steps, samples, seed=0)
    settings = EvaluationSettings()
    windows = evaluation_windows(
        some, settings.horizon, settings.stride, settings.max_windows, first_start
    )
    table = score_windows(
        simulator,
        draws.theta,
        some,
        windows,
        settings.residual_prefix_steps,
        settings.residual_prefix_noise,
    ).table
    row: dict[str, float] = {}
    for score in ("rmse", "es"):
        by_variable = {f"validation_{score}_{x}": table[f"{score}_{x}"].mean() for x in VARIABLES}
        row[f"validation_{score}"] = float(sum(by_variable.values()) / len(VARIABLES))
        row |= {name: float(value) for name, value in by_variable.items()}
    return row
