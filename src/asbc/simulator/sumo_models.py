"""SUMO's own car-following models as black boxes: parameters in, trajectories by SUMO out.

The same attributes are written to the vehicle types that calibration exports, so that SUMO drives
exported drivers as it drove them here.
"""

import weakref
from collections.abc import Mapping, Sequence
from functools import partial
from multiprocessing import parent_process
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asbc.engine import Engine, LocalEngine, Pool
from asbc.engine.local import LocalWorkers, cores
from asbc.errors import InputError
from asbc.simulator.sumo_batch import Batch, SumoBatch, numbers_for, require_sumo
from asbc.utils.checks import check_integer
from asbc.utils.random import uniform

# SUMO counts time in milliseconds.
MILLISECOND = 1e-3
# Draws beyond those of the steps, which a model may take at the start.
SPARE_DRAWS = 4


class SumoModel:
    """A car-following model of SUMO, simulated by SUMO in processes of their own.

    Leaders are imposed, and their type is SUMO's default passenger car (Krauss and others look at
    its decel). Followers have `speedDev=0` and no limit of speed.

    Args:
        name: SUMO's carFollowModel.
        attributes: the vType's attribute for each parameter; a minus before it changes the sign
            (`-cc3`), since parameters are positive.
        fixed: attributes that all drivers share.
        draws: random numbers that a follower takes from its road's generator in a step, at most.
        ballistic: see `SumoBatch`; for types with an actionStepLength.
        pairs: simulated in one loop.
        engine: where SUMO runs; None: one process of this machine.

    Example:
        >>> model = SumoModel("W99", {"cc0": "minGap", "cc3": "-cc3"}, {"cc9": 1.5})
        >>> model.parameters, model.vtype([2.0, 12.0])
        (('cc0', 'cc3'), {'carFollowModel': 'W99', 'minGap': '2', 'cc3': '-12', 'cc9': '1.5'})
    """

    def __init__(
        self,
        name: str,
        attributes: Mapping[str, str],
        fixed: Mapping[str, float] | None = None,
        draws: int = 0,
        ballistic: bool = False,
        pairs: int = 256,
        engine: Engine | None = None,
    ) -> None:
        check_integer("model.law.draws", draws, minimum=0)
        check_integer("model.law.pairs", pairs, minimum=1)
        self.name = f"SUMO's {name}"
        self.model, self.fixed = name, dict(fixed or {})
        self.attributes = dict(attributes)
        self.draws, self.ballistic, self.pairs = draws, ballistic, pairs
        self.engine = engine or LocalEngine(workers=1, time_limit=120.0)
        self._pool: Pool | None = None
        self._pool_dt = 0.0

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the columns of theta."""
        return tuple(self.attributes)

    def vtype(self, driver: Sequence[float]) -> dict[str, str]:
        """A driver's attributes of a vType."""
        own = {}
        for attribute, value in zip(self.attributes.values(), driver, strict=True):
            sign = -1 if attribute.startswith("-") else 1
            own[attribute.lstrip("-")] = number(sign * value)
        fixed = {attribute: number(value) for attribute, value in self.fixed.items()}
        return {"carFollowModel": self.model, **own, **fixed}

    def simulate(
        self,
        theta: Tensor,
        leader_speed: Tensor,
        gap: Tensor,
        speed: Tensor,
        dt: float,
        rng: np.random.Generator,
    ) -> Tensor:
        """See `BlackBox.simulate`."""
        count, steps = leader_speed.shape
        numbers = numbers_for(self.draws and self.draws * steps + SPARE_DRAWS)
        share = uniform(rng, count, numbers, dtype=torch.float64) if numbers else theta[:, :0]
        noise = (share.double().numpy() * 2**32).astype(np.uint32)
        common = 'length="5" speedFactor="1" speedDev="0" '
        types = [common + _xml(self.vtype(row)) for row in theta.tolist()]
        leader = leader_speed.double().numpy()
        whole = Batch(types, leader, gap.double().numpy(), speed.double().numpy(), noise)
        pieces = [
            (f"SUMO pairs {i} to {min(i + self.pairs, count) - 1}", _rows(whole, i, self.pairs))
            for i in range(0, count, self.pairs)
        ]
        found = (
            self._workers(dt).gather(_simulate, pieces) if pieces else [np.empty((2, 0, steps))]
        )
        gaps, speeds = np.concatenate(found, axis=1)
        states = np.stack([gaps, speeds, speeds - leader], axis=-1)
        return torch.from_numpy(states).to(theta.dtype)

    def close(self) -> None:
        """End the processes; the next simulation starts them again."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def _workers(self, dt: float) -> Pool:
        """Workers with a running SUMO each, started once."""
        if self._pool is not None and self._pool_dt == dt:
            return self._pool
        if abs(dt / MILLISECOND - round(dt / MILLISECOND)) > 1e-9:
            raise InputError(f"data.dt={dt}: SUMO counts time in milliseconds; use a multiple")
        require_sumo()
        self.close()
        setup = partial(SumoBatch, self.pairs, dt, self.ballistic)
        engine = self.engine
        if isinstance(engine, LocalEngine) and parent_process() is None:
            # Not an engine's own process where one worker is asked for: a crash of SUMO, or a
            # second one, must not touch the main process.
            pool: Pool = LocalWorkers(setup, engine.workers or cores(), engine)
        else:
            pool = engine.pool(setup)
        self._pool, self._pool_dt = pool, dt
        weakref.finalize(self, pool.close)
        return pool

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_pool": None}


def number(value: float) -> str:
    """Nine digits: what a float32 needs to survive."""
    return f"{value:.9g}"


def _xml(attributes: Mapping[str, str]) -> str:
    return " ".join(f'{name}="{value}"' for name, value in attributes.items())


def _rows(batch: Batch, start: int, size: int) -> Batch:
    parts: list[Any] = [field[start : start + size] for field in batch]
    return Batch(*parts)


def _simulate(sumo: SumoBatch, batch: Batch) -> np.ndarray:
    return sumo.run(batch)
