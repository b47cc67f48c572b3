"""Score a trained run: `python evaluate.py run=RUN_DIR`, on its own test split or other data."""

import sys
from pathlib import Path

import hydra
from omegaconf import DictConfig, OmegaConf

from asbc.evaluation.trained_run import open_run, with_data_of_run


@hydra.main(version_base="1.3", config_path="conf", config_name="evaluate")
def main(cfg: DictConfig) -> None:
    """Rebuild the run's model, evaluate it and write the report into `cfg.output`."""
    # Imported here, so that --help, completion and mistakes in the arguments answer at once.
    import torch
    from hydra.utils import instantiate

    from asbc.evaluation import provenance
    from asbc.evaluation.pipeline import evaluate_posterior
    from asbc.evaluation.run_info import RunInfo, asbc_label
    from asbc.reporting.figures.convergence import read_rounds
    from asbc.reporting.run_report import console_summary, write_run
    from asbc.reporting.wandb_results import log_evaluation

    run = open_run(cfg.run)
    settings = instantiate(cfg.evaluation)
    trained = OmegaConf.create(run.config)
    torch.set_num_threads(cfg.threads)

    training = instantiate(trained.robust)
    estimator = instantiate(trained.estimator)
    selected_round = provenance.load_posterior(estimator, run)

    source, training_source = instantiate(cfg.data), instantiate(trained.data)
    pairs, summary = provenance.pairs_of_split(source, settings.split)
    data = OmegaConf.to_container(cfg.data, resolve=True)
    steps = cfg.data.context_steps
    leaders, note = provenance.training_windows(training_source, pairs, steps)
    names = (training_source.description, source.description)
    notes = provenance.notes_on_data(run.config["data"], data, *names, settings.split)

    evaluation = evaluate_posterior(estimator, training, pairs, steps, leaders, settings)
    info = RunInfo(
        method=asbc_label(trained.residual.name, trained.acquisition.name),
        kind="asbc",
        residual=trained.residual.name,
        acquisition=trained.acquisition.name,
        variant=run.variant,
        seed=run.seed,
        trained_on=names[0],
        evaluated_on=names[1],
        other_data=provenance.is_other_data(run.config["data"], data),
        selected_round=selected_round,
        folder=run.folder.shown,
        version=run.version,
    )
    settings_shown = run.config | {"data": data, "evaluation": evaluation.metrics["settings"]}
    rounds = read_rounds(run.folder.path / "rounds.csv", selected_round)
    write_run(
        evaluation,
        info,
        Path(cfg.output),
        settings_shown,
        summary,
        rounds,
        (*notes, note) if note else tuple(notes),
    )
    if not info.other_data:
        log_evaluation(evaluation, run.folder.path, Path(cfg.output))
    print(console_summary(evaluation, info, Path(cfg.output)))


if __name__ == "__main__":
    groups = Path(__file__).parent / "conf" / "data"
    sys.argv[1:] = with_data_of_run(sys.argv[1:], groups)
    main()
