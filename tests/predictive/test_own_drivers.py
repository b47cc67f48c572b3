"""On drivers who are the simulator's own, there is nothing to gain by training to predict.

Their exact posterior predicts them best, so q has to be close to it (`transform=laplace`). And
they have to be what q was trained on: drives that begin in a state which says nothing of the
driver, and are predicted from where the context ends. A state later in a drive depends on the
driver, which no posterior of the context alone knows; training to predict makes use of that, by 3
to 9% of the score of the gap.
"""

import pytest

from asbc.config import build, compose
from asbc.data.pairs import Pairs
from asbc.run import Run
from asbc.utils.random import standard_normal, stream

DRIVERS, CONTEXT, HORIZON = 2000, 75, 50
SIMULATED = [
    *("experiment=best", "data=pairs", "data.min_duration=25", "residual=gaussian"),
    "callbacks=none",
]
STAGE = ["objective=predictive", "objective.context=first", f"objective.stride={CONTEXT}"]


@pytest.fixture(scope="module")
def own_drivers(tmp_path_factory):
    """Drivers of the prior, driven by the simulator itself behind wandering leaders."""
    simulator = build(compose("train", ["residual=gaussian"]).simulator)
    theta, others = (
        simulator.prior.sample(DRIVERS, stream(7, name)) for name in ("theta", "others")
    )
    start = 4 + 14 * stream(7, "speed").random(DRIVERS)
    steps = CONTEXT + HORIZON + 1
    change = 0.1 * standard_normal(stream(7, "leader"), DRIVERS, steps).cumsum(1)
    leader = (change + change.new_tensor(start)[:, None]).clamp(0.5, 30.0)
    gap = simulator.law.equilibrium_gap(others, leader[:, 0])
    driven = simulator.rollout(theta, leader, gap, leader[:, 0], stream(7, "residual"))
    whole = (driven.gap > 0.1).all(1)
    assert float(whole.double().mean()) > 0.98  # who collides would be missing from the prior
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
    stage = [*settings, *STAGE, f"init={tmp_path / 'simulated'}"]
    train_here(stage, tmp_path / "predictive")
    before, after = (
        Run.open(tmp_path / name)
        .evaluate(samples=200, stride=CONTEXT, simulated_drivers=0)
        .metrics["after_context"]
        for name in ("simulated", "predictive")
    )
    assert before["n_windows"] > 500
    found = {x: after[f"es_{x}"] / before[f"es_{x}"] for x in "sva"}
    assert found == pytest.approx(dict.fromkeys("sva", 1.0), rel=0.01), found
