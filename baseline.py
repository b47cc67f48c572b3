"""Fit a comparison method and score it like ASBC: `python baseline.py baseline=b_idm`."""

import hydra
from omegaconf import DictConfig, OmegaConf


@hydra.main(version_base="1.3", config_path="conf", config_name="baseline")
def main(cfg: DictConfig) -> None:
    """Fit the method, evaluate its draws and write the same files as evaluate.py."""
    # Imported here, so that --help, completion and mistakes in the arguments answer at once.
    import time

    import torch
    from hydra.core.hydra_config import HydraConfig
    from hydra.utils import instantiate

    from asbc.baselines.agreement import require_same_posterior
    from asbc.baselines.method import Task
    from asbc.baselines.run import evaluate_baseline, known_pairs, run_info
    from asbc.baselines.saved_draws import DRAWS, compare_runs
    from asbc.evaluation.provenance import pairs_of_split
    from asbc.evaluation.trained_run import open_run
    from asbc.reporting.run_report import console_summary, write_run
    from asbc.training.folder import RunFolder
    from asbc.utils.stopwatch import Stopwatch

    config = OmegaConf.to_container(cfg, resolve=True)
    choices = HydraConfig.get().runtime.choices
    folder = RunFolder(HydraConfig.get().runtime.output_dir)
    torch.set_num_threads(cfg.threads)
    method, settings = instantiate(cfg.baseline), instantiate(cfg.evaluation)
    source = instantiate(cfg.data)
    pairs, summary = pairs_of_split(source, settings.split)
    task = Task(
        instantiate(cfg.simulator),
        known_pairs(source),
        pairs,
        cfg.data.context_steps,
        settings.samples,
        cfg.seed,
    )
    compared = cfg.baseline.get("compare_run") and open_run(cfg.baseline.compare_run)
    if compared:
        require_same_posterior(compared.config, config)

    watch = Stopwatch(time.process_time)  # other processes do not count
    with watch("fit"):
        fitted = method.fit(task)
    evaluation = evaluate_baseline(fitted, task, settings, watch.seconds["fit"])
    folder.write(OmegaConf.to_yaml(cfg, resolve=True), cfg.seed, HydraConfig.get().overrides.task)
    if fitted.inference is not None:
        fitted.inference.to_netcdf(str(folder.path / DRAWS), engine="h5netcdf")
    info = run_info(method, fitted, choices, HydraConfig.get().overrides.task, cfg.seed, source)
    output = folder.path / "evaluation"
    write_run(evaluation, info, output, config, summary, None)
    print(console_summary(evaluation, info, output))
    if compared:
        compare_runs(folder.path, compared, instantiate, folder.path)
        print(f"agreement with {compared.folder.shown}: {folder.shown}/agreement.csv")


if __name__ == "__main__":
    main()
