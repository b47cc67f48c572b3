"""`asbc baseline baseline=NAME`: a comparison method, fitted and scored like ASBC."""

from omegaconf import DictConfig


def main(cfg: DictConfig) -> None:
    """Fit the method, evaluate its draws and write the same files as `asbc evaluate`."""
    # Imported here, so that --help, completion and mistakes in the arguments answer at once.
    import time
    from typing import Any

    import torch
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import OmegaConf

    from asbc.baselines.method import (
        Task,
        evaluate_baseline,
        known_pairs,
        require_context,
        run_info,
    )
    from asbc.baselines.unpooled import compare_runs, require_same_posterior
    from asbc.config import build
    from asbc.data.source import pairs_of_split
    from asbc.reporting.run_report import console_summary, write_run
    from asbc.run import Run
    from asbc.utils.progress import Stopwatch

    config: Any = OmegaConf.to_container(cfg, resolve=True)
    overrides = HydraConfig.get().overrides.task
    run = Run(HydraConfig.get().runtime.output_dir)
    torch.set_num_threads(cfg.threads)
    method, settings, source = build(cfg.baseline), build(cfg.evaluation), build(cfg.data)
    require_context(method, settings)
    pairs, summary = pairs_of_split(source, settings.split)
    task = Task(
        build(cfg.simulator),
        known_pairs(source),
        pairs,
        cfg.data.context_steps,
        settings.samples,
        cfg.seed,
        source.splits().validation.pair_id,
        settings.context,
    )
    compared = cfg.baseline.get("compare_run") and Run.open(cfg.baseline.compare_run)
    if compared:
        require_same_posterior(compared, config)

    watch = Stopwatch(time.process_time)  # what else runs on the machine does not count
    with watch("fit"):
        fitted = method.fit(task)
    seconds = watch.seconds["fit"] + fitted.worker_seconds
    info = run_info(method, fitted, config["residual"], overrides, cfg.seed, source)
    evaluation = evaluate_baseline(fitted, task, settings, seconds, info)
    run.write(OmegaConf.to_yaml(cfg, resolve=True), cfg.seed, overrides)
    if fitted.inference is not None:
        fitted.inference.to_netcdf(str(run.draws), engine="h5netcdf")
    write_run(evaluation, run.evaluation, config, summary)
    print(console_summary(evaluation, run.evaluation))
    if compared:
        compare_runs(run, compared, run.path)
        print(f"agreement with {compared.shown}: {run.shown}/agreement.csv")
