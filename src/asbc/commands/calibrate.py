"""`asbc calibrate data.path=FILE`: a posterior for every driver of a file."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from omegaconf import DictConfig

from asbc.arguments import offer_data_of_run
from asbc.shipped import DEFAULT

if TYPE_CHECKING:
    from pathlib import Path

    from asbc.data.pairs import Pairs
    from asbc.run import Run

PAGE = "page.html"


def prepare(arguments: Sequence[str]) -> list[str]:
    """The arguments, with the data of the run or of the default model as the choice."""
    return offer_data_of_run(arguments, DEFAULT)


def main(cfg: DictConfig) -> None:
    """Load the run, calibrate all drivers into `cfg.output`, and say what came of it."""
    # Imported here, so that --help, completion and mistakes in the arguments answer at once.
    import logging
    from dataclasses import replace

    logging.getLogger("arviz").setLevel(logging.WARNING)  # it announces what is not installed
    import torch

    from asbc.calibration.calibrate import RECORD, Job, calibrate_into, workers_of
    from asbc.calibration.evidence import Comparison
    from asbc.calibration.export.sumo import sumo_types
    from asbc.calibration.held_out import HeldOutComparison
    from asbc.calibration.refinement import NoRefinement
    from asbc.config import build
    from asbc.data.driver_store import open_drivers, pieces_of
    from asbc.data.source import MIN_STEPS
    from asbc.population import Population
    from asbc.population.pictures import write_population
    from asbc.run import Run
    from asbc.utils.checks import check_integer
    from asbc.utils.files import room_below

    check_integer("page", cfg.page, minimum=0)
    torch.set_num_threads(1)  # as every worker does
    run, output = Run.open(cfg.run), Run(cfg.output)
    settings, refinement, engine = build(cfg.calibration), build(cfg.refine), build(cfg.engine)
    model = run.model(cfg.data.context_steps, settings.context)
    export = {name: value for name, value in cfg.sumo.items() if name != "drivers"}
    types = sumo_types(model.simulator, **export)
    comparison: Comparison | HeldOutComparison | None = None
    if isinstance(cfg.compare_run, str):
        comparison = Comparison(model=Run.open(cfg.compare_run).model(context=model.context))
    elif cfg.compare_run is not None:
        comparison = HeldOutComparison(models=[Run.open(r).model() for r in cfg.compare_run])
    novelty = run.novelty(model.context_steps, model.context) if settings.novelty else None
    job = Job(
        model=model,
        refinement=refinement,
        settings=settings,
        novelty=novelty,
        comparison=comparison,
    )
    steps = model.shortest or model.context_steps
    shortest = cfg.min_duration or steps * cfg.data.dt
    source = build(cfg.data, context_steps=steps, min_duration=shortest)
    if model.by_driver and source.names_short:
        kept = cfg.min_duration or MIN_STEPS * cfg.data.dt
        source = replace(source, context_steps=MIN_STEPS, min_duration=kept)
    most = pieces_of(source) if isinstance(refinement, NoRefinement) else None
    with (
        output.claim(resuming=True),
        room_below(output.shown),
        workers_of(engine, job, most) as pool,
    ):
        finished = (output.path / RECORD).exists()
        drivers = open_drivers(
            *(source, output.path / ".drivers", settings.on_error, cfg.memory, pool, finished),
            model.shortest,
        )
        outcome = calibrate_into(output.path, job, drivers, pool=pool)
        population = Population.read(output.path, model.simulator.prior)
        write_population(population, output.path, cfg.sumo.drivers, types, settings.seed)
        page = ""
        if cfg.page and not finished:
            shown = drivers.piece(0, min(cfg.page, len(drivers))).pairs()
            page = _write_page(run, output.path / PAGE, shown)
        drivers.remove()
    print(outcome.text())
    for reason, count in drivers.drops.items():
        print(f"  left out or changed: {count} {reason}")
    if settings.novelty and novelty is None:
        print("  contexts are longer than the run's: none is compared with its simulations")
    written = [p.name for p in output.path.iterdir() if p.name[0] != "."]
    print(f"written to {output.shown}: {', '.join(sorted(written))}")
    if page:
        print(page)


def _write_page(run: "Run", path: "Path", pairs: "Pairs") -> str:
    """Write the drivers as a page for a browser; returns what to tell the user."""
    from asbc.errors import InputError
    from asbc.page.page import write_page

    try:
        write_page(run, path, pairs, len(pairs))
    except InputError as error:  # a model that a browser cannot compute
        return f"no {path.name}: {error}"
    return f"open {path} in a browser: {len(set(pairs.follower))} drivers, one by one"
