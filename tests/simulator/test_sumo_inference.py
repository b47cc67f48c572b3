"""Posteriors learned through SUMO are right: calibrated, and the same as through our own copy.

Nightly: each training takes a minute or two, half of it in SUMO.
"""

from pathlib import Path

import numpy as np
import pytest
import torch

import asbc
from asbc.evaluation.sbc import check_posterior
from asbc.evaluation.window_draws import sample_contexts
from asbc.run import Run
from asbc.simulator.robust import SimulatedDrivers, simulate_drivers

pytest.importorskip("libsumo", reason="SUMO is not installed: pip install 'asbc[sumo]'")
pytestmark = pytest.mark.slow
SMALL = {
    "acquisition.simulations": 32768,
    "acquisition.chunk": 4096,
    "encoder.model_dim": 32,
    "encoder.layers": 2,
    "encoder.dropout": 0.0,
    "flow.dropout": 0.0,
    "estimator.learning_rate": 4e-3,
    "training.holdout_size": 500,
}


def trained(folder: Path, seed: int = 0, **choices: str) -> Run:
    parts = {"acquisition": "stream", "transform": "bounded", "flow": "nsf"}
    parts |= {"encoder": "differences", "callbacks": "none"}
    return asbc.train(None, folder, SMALL, seed=seed, **parts, **choices)


def drivers_of(run: Run, count: int) -> SimulatedDrivers:
    leaders = run.leaders(run.config["data"]["context_steps"])
    assert leaders is not None
    return simulate_drivers(run.training, leaders, count, seed=7)


@pytest.mark.parametrize("model", ["sumo_krauss", "sumo_eidm", "sumo_idm_box"])
def test_parameters_that_sumo_was_run_with_are_recovered(model, tmp_path):
    run = trained(tmp_path / "run", model=model)
    drivers = drivers_of(run, 1000)
    names = [f"simulated {i}" for i in range(len(drivers.theta))]
    draws = sample_contexts(run.posterior, drivers.states, names, 500, seed=0).theta
    low, high = torch.quantile(draws, torch.tensor([0.025, 0.975]), dim=1)
    inside = ((drivers.theta >= low) & (drivers.theta <= high)).double().mean(0)
    assert 0.93 < float(inside.mean()) < 0.97, inside
    some = SimulatedDrivers(drivers.theta[:300], drivers.states[:300])
    checks = check_posterior(run.posterior, run.simulator.prior, some, 199, seed=0)
    p_values = {n: r.p_value for n, r in zip(checks.names, checks.ranks, strict=True)}
    assert all(p > 0.01 / len(p_values) for p in p_values.values()), p_values
    # Calibrated, and not for want of learning: the headway is known much better than before.
    known = dict(zip(checks.names, np.median(checks.contraction, axis=0), strict=True))
    assert known["T"] > 0.5, known
    run.simulator.law.close()


def test_the_way_through_sumo_learns_what_our_copy_learns(tmp_path):
    """SUMO's IDM against model=sumo_idm in torch: closer than two seeds are to each other."""
    box = trained(tmp_path / "box", model="sumo_idm_box")
    ours = trained(tmp_path / "ours", model="sumo_idm", residual="none")
    other = trained(tmp_path / "other", seed=1, model="sumo_idm", residual="none")
    drivers = drivers_of(ours, 200)
    names = [f"simulated {i}" for i in range(200)]
    mean, spread = {}, {}
    for name, run in (("box", box), ("ours", ours), ("other", other)):
        draws = sample_contexts(run.posterior, drivers.states, names, 500, seed=0).theta
        mean[name], spread[name] = draws.mean(1), draws.std(1)

    def apart(first: str, second: str) -> float:
        return float(((mean[first] - mean[second]) / spread["ours"]).abs().median())

    assert apart("box", "ours") < 1.2 * apart("other", "ours")
    box.simulator.law.close()
