"""`asbc simulate scenario=ring run=RUN`: traffic of a calibrated population."""

from omegaconf import DictConfig

from asbc.arguments import offer_data_of_run as prepare

__all__ = ["main", "prepare"]


def main(cfg: DictConfig) -> None:
    """Load the run and its population, run the scenario, and say where its files are."""
    # Imported here, so that --help, completion and mistakes in the arguments answer at once.
    from pathlib import Path

    import torch

    from asbc.config import build
    from asbc.population import Population
    from asbc.population.population import posterior_population
    from asbc.population.scenarios import World
    from asbc.run import Run

    torch.set_num_threads(cfg.threads)
    scenario, source = build(cfg.scenario), build(cfg.data)
    model = Run.open(cfg.run).model(cfg.data.context_steps)
    if cfg.population is None:
        population = posterior_population(model, source.pairs(), cfg.samples, cfg.seed)
    else:
        population = Population.read(Path(cfg.population), model.simulator.prior)
    output = Run(cfg.output)
    output.path.mkdir(parents=True, exist_ok=True)
    print(scenario.run(World(model, population, source, output.path, cfg.seed)))
    print(f"written to {output.shown}")
