"""Many independent pieces of work on many workers, with the same results as on one.

    engine = LocalEngine(workers=4)                 # or RayEngine(): the group `engine` of conf/
    with engine.pool(partial(load_model, path)) as pool:
        for key, result in pool.map(calibrate_chunk, chunks): ...

`chunks` gives keys and values, `calibrate_chunk(model, value)` is called for each of them, and
`load_model(path)` once in every worker. See `asbc.engine.pool` for what is promised.
"""

from asbc.engine.local import LocalEngine
from asbc.engine.pool import Engine, Pool
from asbc.engine.ray_actors import RayEngine

__all__ = ["Engine", "LocalEngine", "Pool", "RayEngine"]
