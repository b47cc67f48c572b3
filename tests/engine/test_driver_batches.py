"""Exact posteriors on any engine: batches of drivers, the same bytes, whatever dies on the way."""

from functools import partial

import numpy as np
import pytest

from asbc.engine import LocalEngine
from asbc.exact.diagnostics import NutsSettings

pytest.importorskip("numpyro")
from asbc.baselines import hierarchical_model  # noqa: E402
from asbc.exact import drivers, nuts  # noqa: E402
from asbc.exact.drivers import DriverModel, exact_drivers  # noqa: E402
from asbc.exact.statistics import statistics, transitions  # noqa: E402

# Chains too short to converge, so that drivers are sampled by importance as well.
SHORT = NutsSettings(chains=2, warmup=20, draws=210, max_tree_depth=4)


def test_batches_are_the_same_bytes_on_any_engine(engine, pieces, tmp_path):
    keys, data = list(range(7)), np.linspace(1, 2, 7)
    build = pieces.cheap_batch
    with nuts.driver_pool(None, build, 7, at_once=2) as pool:
        expected = nuts.map_drivers(pool, keys, data, at_once=2)
    assert pool.worker_seconds == 0
    killing = partial(pieces.dying_batch, str(tmp_path), build)
    with nuts.driver_pool(engine, killing, 7, at_once=2) as pool:
        found = nuts.map_drivers(pool, keys, data, at_once=2)
    assert (tmp_path / "died").exists() and pool.worker_seconds > 0
    assert found.shape == (7, 100) and found.tobytes() == expected.tobytes()


@pytest.fixture(scope="module")
def known(simulators, pairs_of):
    """The Gaussian simulator, and five drivers of its prior."""
    simulator = simulators["gaussian"]
    truth = simulator.prior.sample(5, np.random.default_rng(3))
    return simulator, pairs_of(simulator, truth, 75, seed=4)


@pytest.mark.slow
def test_posteriors_of_drivers_are_the_same_bytes_on_any_engine(
    engine, pieces, known, monkeypatch, tmp_path
):
    simulator, pairs = known
    seen = transitions(simulator, pairs, 75)

    def sample(engine):
        return exact_drivers(simulator, seen, pairs.pair_id, SHORT, 0, at_once=2, engine=engine)

    here = sample(LocalEngine(workers=1))
    assert here.convergence.drivers_by_importance and here.worker_seconds == 0
    pool_of = drivers.driver_pool

    def killing(engine, build, count, at_once):
        return pool_of(engine, partial(pieces.dying_batch, str(tmp_path), build), count, at_once)

    monkeypatch.setattr(drivers, "driver_pool", killing)
    there = sample(engine)
    assert (tmp_path / "died").exists()
    assert there.theta.tobytes() == here.theta.tobytes()
    assert there.convergence == here.convergence
    # All work on drivers was done elsewhere, and is counted.
    assert there.nuts_seconds > 1 and there.worker_seconds > there.nuts_seconds / 2


@pytest.mark.slow
def test_a_population_is_the_same_bytes_on_two_workers(known):
    simulator, pairs = known
    model, seen = DriverModel.of(simulator), statistics(simulator, transitions(simulator, pairs))
    here, there = (
        hierarchical_model.sample_population(model, seen, SHORT, 0, 2, engine)
        for engine in (None, LocalEngine(workers=2))
    )
    for name, value in here.chains.sites.items():
        assert value.tobytes() == there.chains.sites[name].tobytes(), name
    assert here.driver_ess.tobytes() == there.driver_ess.tobytes()
    assert here.worker_seconds == 0 < there.worker_seconds


def test_a_model_that_cannot_be_rebuilt_is_not_sent():
    import pickle

    with pytest.raises(TypeError, match="without its simulator"):
        pickle.dumps(DriverModel(1, np.exp, lambda theta, data: theta.sum()))
