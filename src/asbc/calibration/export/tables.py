"""Draws and their summary as tidy tables."""

import numpy as np
import pandas as pd
import pyarrow as pa
import torch
from torch import Tensor

from asbc.simulator import Prior

QUANTILES = {"q05": 0.05, "q50": 0.50, "q95": 0.95}


def draws_table(
    names: list[str], theta: Tensor, prior: Prior, id_column: str = "pair_id"
) -> pa.Table:
    """A row per driver and draw: `pair_id` or `follower`, `draw`, and a column per parameter.

    Units are kept as metadata of the columns.
    """
    drivers, draws, _ = theta.shape
    index = pa.array(np.repeat(np.arange(drivers, dtype=np.int32), draws))
    ids = pa.DictionaryArray.from_arrays(index, pa.array(names, pa.string()))
    values = theta.flatten(0, 1).numpy()
    fields = [pa.field(id_column, ids.type), pa.field("draw", pa.int32())]
    fields += [
        pa.field(name, pa.float32(), metadata={"unit": unit})
        for name, unit in zip(prior.names, prior.units, strict=True)
    ]
    columns = [ids, pa.array(np.tile(np.arange(draws, dtype=np.int32), drivers))]
    columns += [pa.array(np.ascontiguousarray(column)) for column in values.T]
    return pa.table(columns, schema=pa.schema(fields))


def summary_columns(theta: Tensor, prior: Prior) -> dict[str, np.ndarray]:
    """Mean, standard deviation and quantiles by parameter, e.g. "v0.mean", each (driver,)."""
    values = theta.double()
    # One sort of contiguous draws: several times faster than torch.quantile along the middle axis.
    ordered = theta.transpose(1, 2).contiguous().sort(-1).values.double()
    measures = {"mean": values.mean(1), "sd": values.std(1)}
    measures |= {name: _quantile(ordered, level) for name, level in QUANTILES.items()}
    return {
        f"{name}.{measure}": value[:, i].numpy()
        for i, name in enumerate(prior.names)
        for measure, value in measures.items()
    }


def _quantile(ordered: Tensor, level: float) -> Tensor:
    """The linearly interpolated quantile along the sorted last axis."""
    place = level * (ordered.shape[-1] - 1)
    below = int(place)
    above = min(below + 1, ordered.shape[-1] - 1)
    return torch.lerp(ordered[..., below], ordered[..., above], place - below)


def long_summary(drivers: pd.DataFrame, prior: Prior) -> pd.DataFrame:
    """A row per driver and parameter: mean, sd, quantiles, with the parameter's unit."""
    measures = ("mean", "sd", *QUANTILES)
    parts = []
    for order, (name, unit) in enumerate(zip(prior.names, prior.units, strict=True)):
        part = drivers[[id_of(drivers)]].assign(parameter=name, unit=unit, order=order)
        parts.append(part.assign(**{m: drivers[f"{name}.{m}"] for m in measures}))
    # Drivers stay in their order, parameters in the model's.
    table = pd.concat(parts).rename_axis("place").reset_index()
    return table.sort_values(["place", "order"]).drop(columns=["place", "order"])


def id_of(drivers: pd.DataFrame) -> str:
    """The column that says whom a row belongs to: a pair, or a driver with all of its pairs."""
    return "pair_id" if "pair_id" in drivers else "follower"


def driver_columns(drivers: pd.DataFrame) -> pd.DataFrame:
    """A row per driver without the parameters' summary and the place in the data."""
    names = [name for name in drivers if "." not in str(name) and name != "position"]
    return drivers[names]
