"""How well an amortized posterior agrees with the exact one, driver by driver."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from asbc.baselines.c2st import c2st
from asbc.utils.checks import InputError

LEVEL = 0.9
# What defines the posterior of a context.
POSTERIOR_SECTIONS = ("model", "residual", "prior")
POSTERIOR_DATA = ("dt", "context_steps")


def posterior_differences(trained: Mapping[str, Any], exact: Mapping[str, Any]) -> list[str]:
    """In what two configs describe different posteriors of a context; empty if in nothing."""
    pairs = [(name, trained[name], exact[name]) for name in POSTERIOR_SECTIONS]
    pairs += [
        (f"data.{name}", trained["data"][name], exact["data"][name]) for name in POSTERIOR_DATA
    ]
    return [name for name, theirs, ours in pairs if theirs != ours]


def require_same_posterior(trained: Mapping[str, Any], exact: Mapping[str, Any]) -> None:
    """Raise unless two configs describe the same posterior of a context."""
    if different := posterior_differences(trained, exact):
        raise InputError(
            f"baseline.compare_run: the run differs in {', '.join(different)} (its residual is "
            f"{trained['residual']['name']}); give this command the run's settings"
        )


def interval_overlap(first: Tensor, second: Tensor, level: float = LEVEL) -> Tensor:
    """Length shared by two central intervals over the length both span, (problem, dim).

    Args:
        first, second: (problem, draw, dim).
        level: mass of the intervals.

    Example:
        >>> draws = torch.linspace(0, 1, 101).reshape(1, -1, 1)
        >>> interval_overlap(draws, draws + 0.45)
        tensor([[0.3333]])
    """
    ends = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=first.dtype)
    (low, high), (other_low, other_high) = (
        torch.quantile(draws, ends, dim=1) for draws in (first, second)
    )
    shared = (torch.minimum(high, other_high) - torch.maximum(low, other_low)).clamp_min(0)
    return shared / (torch.maximum(high, other_high) - torch.minimum(low, other_low))


def agreement(
    exact: Tensor,
    amortized: Tensor,
    names: Sequence[str],
    drivers: Sequence[str],
    rng: np.random.Generator,
) -> pd.DataFrame:
    """A row per driver: C2ST accuracy, interval overlap and shift of each parameter.

    The shift is the difference of the means in standard deviations of the exact posterior.

    Args:
        exact, amortized: (driver, draw, dim) posterior draws.
        names: of the parameters.
        drivers: of the drivers.
        rng: for the classifiers.
    """
    shift = (amortized.mean(1) - exact.mean(1)) / exact.std(1)
    overlap = interval_overlap(exact, amortized)
    return pd.DataFrame(
        {
            "pair_id": list(drivers),
            "c2st": c2st(exact, amortized, rng).numpy(),
            **{f"overlap_{name}": overlap[:, i].numpy() for i, name in enumerate(names)},
            **{f"shift_{name}": shift[:, i].numpy() for i, name in enumerate(names)},
        }
    )


def summarise_agreement(
    table: pd.DataFrame, exact_seconds: float, amortized_seconds: float
) -> dict[str, Any]:
    """Means over drivers, and what a driver costs either way."""
    overlap = table.filter(like="overlap_")
    return {
        "drivers": len(table),
        "c2st_mean": float(table["c2st"].mean()),
        "c2st_worst": float(table["c2st"].max()),
        "interval_overlap": {
            str(name).removeprefix("overlap_"): float(value)
            for name, value in overlap.mean().items()
        },
        "nuts_seconds_per_driver": exact_seconds,
        "amortized_seconds_per_driver": amortized_seconds,
        "speed_up": exact_seconds / amortized_seconds,
    }
