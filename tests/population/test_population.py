"""The pooled population, its new drivers, and its pictures."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from asbc.calibration.export.sumo import sumo_types
from asbc.calibration.export.tables import draws_table
from asbc.errors import InputError
from asbc.population import Population
from asbc.population.pictures import new_drivers_figure, population_figure, write_population
from asbc.population.population import simulate
from asbc.population.sumo_replay import read_vtypes
from asbc.simulator import Simulator


@pytest.fixture(scope="module")
def simulator(simulator_of: Callable[[str], Simulator]) -> Simulator:
    return simulator_of("matern")


@pytest.fixture(scope="module")
def population(population_of: Callable[..., Population], simulator: Simulator) -> Population:
    return population_of(simulator, 100, 80)


def write_draws(path: Path, theta: torch.Tensor, simulator: Simulator) -> None:
    """As `asbc calibrate` does: one row group per chunk of drivers."""
    import pyarrow.parquet as pq

    names = [f"r/{i}" for i in range(len(theta))]
    chunks = [(names[i : i + 3], theta[i : i + 3]) for i in range(0, len(theta), 3)]
    tables = [draws_table(list(n), t, simulator.prior) for n, t in chunks]
    with pq.ParquetWriter(path, tables[0].schema) as writer:
        for table in tables:
            writer.write_table(table)


def test_new_drivers_keep_the_correlations(population: Population) -> None:
    expected = np.corrcoef(population.theta.numpy(), rowvar=False)
    np.testing.assert_allclose(population.correlation(), expected, atol=1e-5)
    drawn = population.sample(20_000, np.random.default_rng(0))
    found = np.corrcoef(drawn.numpy(), rowvar=False)
    np.testing.assert_allclose(found, expected, atol=0.03)
    assert found[1, 2] < -0.7 and found[3, 4] > 0.6  # the fixture's own correlations
    # Every new driver is one draw, not a mixture of several.
    known = {tuple(row) for row in population.theta.tolist()}
    assert all(tuple(row) in known for row in drawn[:200].tolist())


def test_a_calibrations_draws_are_read_back(
    population: Population, simulator: Simulator, tmp_path: Path
) -> None:
    theta = population.theta.reshape(100, 80, -1)
    write_draws(tmp_path / "draws.parquet", theta, simulator)
    whole = Population.read(tmp_path, simulator.prior)
    assert whole.drivers == 100 and torch.equal(whole.theta, population.theta)
    # Of many draws the same number is kept of every driver.
    part = Population.read(tmp_path / "draws.parquet", simulator.prior, most=550)
    assert part.drivers == 100 and torch.equal(part.theta, theta[:, :5].flatten(0, 1))


def test_draws_of_another_model_are_refused(
    population_of: Callable[..., Population],
    simulator_of: Callable[[str], Simulator],
    simulator: Simulator,
    tmp_path: Path,
) -> None:
    gaussian = simulator_of("gaussian")
    theta = population_of(gaussian, 2, 3).theta.reshape(2, 3, -1)
    write_draws(tmp_path / "draws.parquet", theta, gaussian)
    with pytest.raises(InputError, match="no column ell"):
        Population.read(tmp_path, simulator.prior)
    with pytest.raises(InputError, match="run asbc calibrate first"):
        Population.read(tmp_path / "none", simulator.prior)


def test_new_drivers_behind_a_leader(population: Population, simulator: Simulator) -> None:
    leader = 10 + 3 * torch.sin(torch.arange(200) * 0.04)
    theta, rollout = simulate(
        simulator, population, 400, leader, 18.0, 9.0, np.random.default_rng(1)
    )
    assert theta.shape == (400, 7) and rollout.gap.shape == (400, 200)
    assert bool((rollout.gap[:, 0] == 18).all()) and bool((rollout.speed[:, 0] == 9).all())
    # Slow leaders: in the long run a driver's gap grows with its own time headway.
    late = rollout.gap[:, 100:].mean(1)
    assert float(torch.corrcoef(torch.stack([late, theta[:, 2]]))[0, 1]) > 0.5
    figure = new_drivers_figure(
        rollout, leader, 0.2, {n: getattr(rollout, n)[0] for n in rollout._fields[:4]}
    )
    median = figure.axes[0].lines[0].get_ydata()
    np.testing.assert_allclose(median, np.median(rollout.gap, axis=0), atol=0.05)


def test_the_picture_shows_every_parameter_with_its_unit(population: Population) -> None:
    figure = population_figure(population, np.random.default_rng(0))
    assert len(figure.axes) == 49
    labels = {ax.get_xlabel() for ax in figure.axes} - {""}
    assert labels >= {"$v_0$ (m/s)", "$T$ (s)", "$b$ (m/s²)"} and len(labels) == 7


def test_files_of_a_population(
    population: Population, simulator: Simulator, tmp_path: Path
) -> None:
    types = sumo_types(simulator, length=4.5)
    written = write_population(population, tmp_path, 40, types, seed=0)
    assert written == ["population.png", "population.pdf", "drivers.add.xml"]
    _, theta = read_vtypes(tmp_path / "drivers.add.xml")
    assert len(theta) == 40
    assert np.corrcoef(theta.numpy(), rowvar=False)[1, 2] < -0.5
    assert 'length="4.5"' in (tmp_path / "drivers.add.xml").read_text()
    assert "step-length 0.2" in (tmp_path / "drivers.add.xml").read_text()
    assert write_population(population, tmp_path, 0, types, seed=0) == written[:2]
