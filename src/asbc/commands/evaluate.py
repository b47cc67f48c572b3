"""`asbc evaluate run=RUN`: scores of a trained run, on its own test split or on other data."""

from typing import TYPE_CHECKING

from omegaconf import DictConfig

from asbc.arguments import offer_data_of_run as prepare

if TYPE_CHECKING:
    from asbc.evaluation.results import Evaluation
    from asbc.run import Run

__all__ = ["main", "prepare"]


def with_target_loss(evaluation: "Evaluation", run: "Run", cfg: DictConfig) -> "Evaluation":
    """The evaluation with the section `target_loss` in its metrics."""
    from dataclasses import replace
    from pathlib import Path

    from asbc.config import build
    from asbc.data.source import pairs_of_split
    from asbc.exact.reference import target_scores

    source = build(cfg.data)
    pairs, _ = pairs_of_split(source, cfg.evaluation.split)
    cache = Path(cfg.data.cache_dir) / "exact"
    scores = target_scores(
        run.posterior, run.simulator, pairs, source.context_steps, cache, build(cfg.engine)
    )
    return replace(evaluation, metrics=evaluation.metrics | {"target_loss": scores})


def main(cfg: DictConfig) -> None:
    """Rebuild the run's model, evaluate it and write the report into `cfg.output`."""
    # Imported here, so that --help, completion and mistakes in the arguments answer at once.
    from pathlib import Path
    from typing import Any

    import torch
    from omegaconf import OmegaConf

    from asbc.config import build
    from asbc.evaluation.evaluate import evaluate_source
    from asbc.reporting.figures.convergence import read_rounds
    from asbc.reporting.run_report import console_summary, write_run
    from asbc.reporting.wandb import log_evaluation
    from asbc.run import Run

    run, folder = Run.open(cfg.run), Path(cfg.output)
    torch.set_num_threads(cfg.threads)
    data: Any = OmegaConf.to_container(cfg.data, resolve=True)
    evaluation, summary = evaluate_source(run, build(cfg.data), build(cfg.evaluation), data)
    if cfg.target_loss:
        evaluation = with_target_loss(evaluation, run, cfg)
    shown = run.config | {"data": data, "evaluation": evaluation.metrics["settings"]}
    write_run(evaluation, folder, shown, summary, read_rounds(run.rounds, run.selected_round))
    if not evaluation.metrics["run"]["other_data"]:
        log_evaluation(evaluation, run.path, folder)
    print(console_summary(evaluation, folder))
