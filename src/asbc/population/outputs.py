"""The population of a calibration as files: a picture, and types for SUMO."""

from pathlib import Path

from asbc.population.figures import population_figure
from asbc.population.population import Population
from asbc.population.sumo_types import ATTRIBUTES, SumoTypes, write_vtypes
from asbc.reporting.figures.style import save_figure
from asbc.simulator import Simulator
from asbc.utils.random import stream

SUMO_FILE = "drivers.add.xml"


def write_population(
    population: Population, folder: Path, drivers: int, types: SumoTypes, seed: int
) -> list[str]:
    """Draw the population, and export `drivers` new drivers; returns what was written.

    A law that SUMO's IDM cannot stand for has no export.
    """
    rng = stream(seed, "population")
    save_figure(population_figure(population, rng), folder, "population")
    written = ["population.png", "population.pdf"]
    if drivers and set(ATTRIBUTES) <= set(population.names):
        theta = population.sample(drivers, rng)
        write_vtypes(folder / SUMO_FILE, theta, population.names, types)
        written.append(SUMO_FILE)
    return written


def sumo_types(simulator: Simulator, **settings: object) -> SumoTypes:
    """Settings of the export with what the simulator fixes: step, braking bound, exponent."""
    fixed = {
        "step_length": simulator.dt,
        "emergency_decel": -simulator.acceleration_bounds[0],
        "delta": getattr(simulator.law, "delta", 4.0),
    }
    return SumoTypes(**fixed, **settings)  # type: ignore[arg-type]
