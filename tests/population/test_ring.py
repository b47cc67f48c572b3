"""Ring-road traffic against closed forms, a plain loop, and conservation."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.optimize import brentq

from asbc.errors import InputError
from asbc.population import Population
from asbc.population.pictures import fundamental_diagram, time_space_diagram
from asbc.population.ring import (
    Ring,
    RingTraffic,
    edie_cells,
    equilibrium_curve,
    simulate_ring,
    summarise_traffic,
)
from asbc.simulator import Simulator

DRIVER = [30.0, 2.0, 1.5, 1.2, 1.8]
QUIET = 1e-9


def equilibrium_speed(gap: float) -> float:
    v0, s0, headway, _, _ = DRIVER
    return brentq(lambda v: (s0 + v * headway) / math.sqrt(1 - (v / v0) ** 4) - gap, 0, 29.99)


def test_identical_quiet_drivers_reach_the_equilibrium(
    simulator_of: Callable[[str], Simulator],
) -> None:
    simulator, ring = simulator_of("gaussian"), Ring(duration=400.0)
    theta = torch.tensor([*DRIVER, QUIET]).repeat(1, 32, 1)
    traffic = simulate_ring(simulator, theta, ring, np.random.default_rng(0))
    speed = equilibrium_speed(2 * math.pi * 137 / 32 - 5)
    torch.testing.assert_close(
        traffic.speed[0, -1], torch.full((32,), speed), rtol=1e-4, atol=1e-4
    )
    row = summarise_traffic(traffic.after(300)).iloc[0]
    assert row["flow_per_hour"] == pytest.approx(3600 * 32 / (2 * math.pi * 137) * speed, rel=1e-4)
    density, flow = equilibrium_curve(simulator.law, theta[0, 0], 5.0)
    on_curve = np.interp(traffic.density, density.numpy()[::-1], flow.numpy()[::-1])
    assert on_curve * 3600 == pytest.approx(row["flow_per_hour"], rel=1e-3)


def test_a_plain_loop_over_vehicles_agrees(
    simulator_of: Callable[[str], Simulator], population_of: Callable[..., Population]
) -> None:
    simulator = simulator_of("gaussian")
    theta = population_of(simulator, 6, 1).theta.clone()
    theta[:, 5] = QUIET
    ring = Ring(radius=25.0, duration=20.0, initial_speed=6.0)
    traffic = simulate_ring(simulator, theta[None], ring, np.random.default_rng(0))
    length, dt = 2 * math.pi * 25.0, 0.2
    x, v = [length / 6 * i for i in range(6)], [6.0] * 6
    for step in range(100):
        new_v = []
        for i in range(6):
            v0, s0, headway, a, b, _ = theta[i].tolist()
            ahead = (i + 1) % 6
            gap = (x[ahead] - x[i]) % length - 5.0
            desired = s0 + v[i] * headway + v[i] * (v[i] - v[ahead]) / (2 * math.sqrt(a * b))
            new_v.append(max(0.0, v[i] + dt * a * (1 - (v[i] / v0) ** 4 - (desired / gap) ** 2)))
        x = [p + (old + new) / 2 * dt for p, old, new in zip(x, v, new_v, strict=True)]
        v = new_v
        np.testing.assert_allclose(traffic.speed[0, step + 1], v, atol=1e-5)
        np.testing.assert_allclose(
            torch.cos(traffic.position[0, step + 1] / 25.0), np.cos(np.array(x) / 25.0), atol=1e-4
        )


def test_vehicles_keep_their_order_and_residuals_make_waves(
    simulator_of: Callable[[str], Simulator], population_of: Callable[..., Population]
) -> None:
    simulator = simulator_of("matern")
    theta = population_of(simulator, 32, 2).theta.reshape(2, 32, -1)
    ring = Ring(duration=120.0)
    traffic = simulate_ring(simulator, theta, ring, np.random.default_rng(4))
    assert not traffic.collided.any()
    spacing = (traffic.position.roll(-1, dims=2) - traffic.position) % ring.length
    assert float(spacing.min()) > ring.vehicle_length
    torch.testing.assert_close(
        spacing.double().sum(2), torch.full((2, 601), ring.length).double(), rtol=1e-5, atol=0
    )
    calm = theta.clone()
    calm[..., 5] = QUIET
    still = simulate_ring(simulator, calm, ring, np.random.default_rng(4))
    # Over time at each vehicle, once the different drivers have settled.
    spread = [float(t.after(60).speed.std(1).mean()) for t in (traffic, still)]
    assert spread[0] > 3 * spread[1]


def test_replications_do_not_depend_on_each_other(
    simulator_of: Callable[[str], Simulator], population_of: Callable[..., Population]
) -> None:
    simulator = simulator_of("matern")
    theta = population_of(simulator, 10, 3).theta.reshape(3, 10, -1)
    ring = Ring(radius=60.0, duration=30.0)
    three = simulate_ring(simulator, theta, ring, np.random.default_rng(1))
    one = simulate_ring(simulator, theta[:1], ring, np.random.default_rng(1))
    torch.testing.assert_close(three.speed[:1], one.speed, rtol=0, atol=1e-5)


def test_edie_cells_of_hand_made_traffic() -> None:
    """Two vehicles at 10 m/s on a 100 m ring, four cells of 25 m, 10 s."""
    ring = Ring(radius=100 / (2 * math.pi), duration=9.9)
    time = torch.arange(100) * 0.1
    position = torch.stack([10 * time % 100, (10 * time + 50) % 100], dim=-1)[None]
    traffic = RingTraffic(
        ring, 0.1, position, torch.full((1, 100, 2), 10.0), torch.zeros(1, 2, dtype=torch.bool)
    )
    cells = edie_cells(traffic, cell_length=25.0, cell_duration=10.0)
    assert cells.density.shape == (1, 1, 4)
    np.testing.assert_allclose(cells.density, 2 / 100, rtol=0.03)  # one sample at each cell's edge
    np.testing.assert_allclose(cells.speed, 10.0)
    assert cells.density.mean() == pytest.approx(0.02) and cells.flow.mean() == pytest.approx(0.2)


def test_too_many_vehicles_are_refused(
    simulator_of: Callable[[str], Simulator], population_of: Callable[..., Population]
) -> None:
    simulator = simulator_of("gaussian")
    theta = population_of(simulator, 40, 1).theta[None]
    with pytest.raises(InputError, match="40 vehicles of 5 m do not fit on a ring of 126 m"):
        simulate_ring(simulator, theta, Ring(radius=20.0), np.random.default_rng(0))
    with pytest.raises(InputError, match="scenario.radius=-1"):
        Ring(radius=-1.0)


def test_figures_draw_every_vehicle_and_cell(
    simulator_of: Callable[[str], Simulator], population_of: Callable[..., Population]
) -> None:
    simulator = simulator_of("gaussian")
    theta = population_of(simulator, 12, 1).theta[None]
    ring = Ring(radius=40.0, duration=60.0)
    traffic = simulate_ring(simulator, theta, ring, np.random.default_rng(0))
    pieces = time_space_diagram(traffic, 0, seconds=30.0).axes[0].collections[0]
    # 30 pieces of one second per vehicle, and one more for each passage of the origin.
    position = traffic.position[0, 150::5].numpy()
    assert len(pieces.get_paths()) == 30 * 12 + int((np.diff(position, axis=0) < 0).sum())
    cells = edie_cells(traffic, 50.0, 10.0)
    figure = fundamental_diagram(
        [cells],
        (np.array([0.03]), np.array([0.3])),
        equilibrium_curve(simulator.law, theta[0].mean(0), 5.0),
    )
    drawn = figure.axes[0].lines[0]
    assert len(drawn.get_xdata()) == int((cells.density > 0).sum())
    np.testing.assert_allclose(np.mean(drawn.get_ydata()), 3600 * cells.flow.mean(), rtol=1e-6)
