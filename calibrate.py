"""A posterior for every driver of a file: `python calibrate.py run=RUN data.path=FILE`."""

import logging
import sys
from pathlib import Path

import hydra
from omegaconf import DictConfig

from asbc.calibration.arguments import with_output
from asbc.evaluation.trained_run import open_run, with_data_of_run


@hydra.main(version_base="1.3", config_path="conf", config_name="calibrate")
def main(cfg: DictConfig) -> None:
    """Load the run, calibrate all drivers into `cfg.output`, and say what came of it."""
    logging.getLogger("arviz").setLevel(logging.WARNING)  # it announces what is not installed
    # Imported here, so that --help, completion and mistakes in the arguments answer at once.
    import torch
    from hydra.utils import instantiate

    from asbc.calibration.chunk import Job
    from asbc.calibration.comparison import Comparison
    from asbc.calibration.drivers import load_drivers
    from asbc.calibration.model import load_model, training_novelty
    from asbc.calibration.pipeline import calibrate
    from asbc.population import Population
    from asbc.population.outputs import sumo_types, write_population
    from asbc.training.folder import RunFolder

    torch.set_num_threads(cfg.threads)
    run, folder = open_run(cfg.run), Path(cfg.output)
    settings, refinement = instantiate(cfg.calibration), instantiate(cfg.refine)
    model = load_model(run, instantiate, cfg.data.context_steps)
    export = {name: value for name, value in cfg.sumo.items() if name != "drivers"}
    types = sumo_types(model.simulator, **export)
    comparison = None
    if cfg.compare_run is not None:
        other = load_model(open_run(cfg.compare_run), instantiate)
        comparison = Comparison(model=other)

    shortest = cfg.min_duration or cfg.data.context_steps * cfg.data.dt
    source = instantiate(cfg.data, min_duration=shortest)
    drivers = load_drivers(source, settings.on_error)
    novelty, note = training_novelty(
        model,
        instantiate(run.config["robust"]),
        instantiate(run.config["data"]),
        drivers.pairs,
        settings.simulated_drivers,
        settings.seed,
    )
    job = Job(
        model=model,
        refinement=refinement,
        settings=settings,
        novelty=novelty,
        comparison=comparison,
    )
    with RunFolder(folder).claim(resuming=True):
        outcome = calibrate(job, drivers.pairs, folder, drivers.skipped)
        population = Population.read(folder, model.simulator.prior)
        write_population(population, folder, cfg.sumo.drivers, types, settings.seed)
    print(outcome.text())
    for reason, count in drivers.drops.items():
        print(f"  left out: {count} {reason}")
    if note:
        print(f"  {note}")
    print(f"written to {RunFolder(folder).shown}: " + ", ".join(visible(folder)))


def visible(folder: Path) -> list[str]:
    """The files a user may want to open."""
    return sorted(p.name for p in folder.iterdir() if p.is_file() and not p.name.startswith("."))


if __name__ == "__main__":
    arguments = with_data_of_run(sys.argv[1:], Path(__file__).parent / "conf" / "data")
    sys.argv[1:] = with_output(arguments, "calibration")
    main()
