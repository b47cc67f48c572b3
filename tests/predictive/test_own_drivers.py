"""Where the simulator is right, training to predict has nothing to add to the exact posterior."""

import numpy as np
import pytest

import asbc
from asbc.config import build, compose
from asbc.data.pairs import Pairs
from asbc.data.windows import leader_windows
from asbc.utils.random import stream

DRIVERS, STEPS = 600, 201  # 40 s
SMALL = {"acquisition.simulations": 65536, "robust": "none"}


@pytest.fixture(scope="module")
def own_drivers(tmp_path_factory):
    """Drivers that the model itself has simulated, behind the embedded recordings' leaders."""
    cfg = compose("train", ["residual=matern"])
    simulator, rng = build(cfg.simulator), stream(0, "own drivers")
    leaders = leader_windows(build(cfg.data).pairs(), STEPS, 25)
    chosen = leaders.take(np.asarray(rng.integers(len(leaders.pair), size=2 * DRIVERS)))
    theta = simulator.prior.sample(2 * DRIVERS, rng)
    driven = simulator.rollout(theta, chosen.leader_speed, chosen.gap, chosen.speed, rng)
    whole = (~driven.collided).nonzero().flatten()[:DRIVERS]
    assert len(whole) == DRIVERS
    series = (driven.gap, driven.speed, chosen.leader_speed)
    pairs = Pairs.from_series(*(x[whole] for x in series), simulator.dt, recording="own")
    path = tmp_path_factory.mktemp("own") / "pairs.parquet"
    pairs.to_table().to_parquet(path, index=False)
    return path


@pytest.mark.slow
def test_predictions_of_its_own_drivers_change_by_less_than_a_hundredth(own_drivers, tmp_path):
    chosen = {"residual": "matern", "overrides": SMALL}
    start = asbc.train(own_drivers, tmp_path / "start", experiment="robust_stream", **chosen)
    chosen["overrides"] = {**SMALL, "init": str(tmp_path / "start")}
    trained = asbc.train(own_drivers, tmp_path / "trained", experiment="predictive", **chosen)
    for context in ("first", "latest"):
        found = [
            run.evaluate(simulated_drivers=0, samples=200, context=context).metrics[
                "after_context"
            ]
            for run in (start, trained)
        ]
        ratios = [found[1][f"es_{x}"] / found[0][f"es_{x}"] for x in "sva"]
        print(context, ratios)
        assert all(abs(ratio - 1) < 0.01 for ratio in ratios), (context, ratios)
