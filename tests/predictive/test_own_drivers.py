"""On drivers who are the simulator's own, there is nothing to gain by training to predict."""

import pytest

from asbc.config import build, compose
from asbc.data.pairs import Pairs
from asbc.run import Run
from asbc.utils.random import standard_normal, stream

DRIVERS, STEPS = 600, 225
SIMULATED = [
    *("experiment=robust_stream", "robust=none", "data=pairs", "residual=matern"),
    *("acquisition.simulations=131072", "callbacks=none"),
]


@pytest.fixture(scope="module")
def own_drivers(tmp_path_factory):
    """Drivers of the prior, driven by the simulator itself behind wandering leaders."""
    simulator = build(compose("train", ["residual=matern"]).simulator)
    theta = simulator.prior.sample(DRIVERS, stream(7, "theta"))
    start = 4 + 14 * stream(7, "speed").random(DRIVERS)
    change = 0.25 * standard_normal(stream(7, "leader"), DRIVERS, STEPS).cumsum(1)
    leader = (change + change.new_tensor(start)[:, None]).clamp(0.5, 30.0)
    gap = simulator.law.equilibrium_gap(theta, leader[:, 0])
    driven = simulator.rollout(theta, leader, gap, leader[:, 0], stream(7, "residual"))
    whole = (driven.gap > 0.1).all(1)
    series = (driven.gap, driven.speed, leader, driven.acceleration)
    gap, speed, leader, acceleration = (values[whole] for values in series)
    path = tmp_path_factory.mktemp("own") / "pairs.parquet"
    pairs = Pairs.from_series(gap, speed, leader, simulator.dt, acceleration)
    pairs.to_table().to_parquet(path, index=False)
    return path


@pytest.mark.slow
def test_predictions_of_its_own_drivers_stay(own_drivers, train_here, tmp_path):
    settings = [*SIMULATED, f"data.path={own_drivers}"]
    train_here(settings, tmp_path / "simulated")
    stage = [*settings, "objective=predictive", f"init={tmp_path / 'simulated'}"]
    train_here(stage, tmp_path / "predictive")
    before, after = (
        Run.open(tmp_path / name).evaluate(samples=200).metrics["after_context"]
        for name in ("simulated", "predictive")
    )
    for variable in "sva":
        assert after[f"es_{variable}"] == pytest.approx(before[f"es_{variable}"], rel=0.01)
