"""Traffic of a calibrated population: `python simulate.py scenario=ring run=RUN_DIR`."""

import sys
from pathlib import Path

import hydra
from omegaconf import DictConfig

from asbc.evaluation.trained_run import open_run, with_data_of_run


@hydra.main(version_base="1.3", config_path="conf", config_name="simulate")
def main(cfg: DictConfig) -> None:
    """Load the run and its population, run the scenario, and say where its files are."""
    # Imported here, so that --help, completion and mistakes in the arguments answer at once.
    import torch
    from hydra.utils import instantiate

    from asbc.calibration.model import load_model
    from asbc.population import Population
    from asbc.population.world import World, posterior_population
    from asbc.training.folder import RunFolder

    torch.set_num_threads(cfg.threads)
    scenario = instantiate(cfg.scenario)
    model = load_model(open_run(cfg.run), instantiate, cfg.data.context_steps)
    source = instantiate(cfg.data)
    if cfg.population is None:
        population = posterior_population(model, source.pairs(), cfg.samples, cfg.seed)
    else:
        population = Population.read(Path(cfg.population), model.simulator.prior)
    folder = Path(cfg.output)
    folder.mkdir(parents=True, exist_ok=True)
    print(scenario.run(World(model, population, source, folder, cfg.seed)))
    print(f"written to {RunFolder(folder).shown}")


if __name__ == "__main__":
    sys.argv[1:] = with_data_of_run(sys.argv[1:], Path(__file__).parent / "conf" / "data")
    main()
