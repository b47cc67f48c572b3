"""`asbc report runs=GLOB_OR_LIST`: the paper's table and figures over many runs."""

from omegaconf import DictConfig


def main(cfg: DictConfig) -> None:
    """Find the runs, refuse unlike ones, and write one report per comparable group."""
    # Imported here, so that --help, completion and mistakes in the arguments answer at once.
    from pathlib import Path

    import torch
    from omegaconf import OmegaConf

    from asbc.config import build
    from asbc.reporting.collect import find_runs, find_trained
    from asbc.reporting.design_study import write_design_study
    from asbc.reporting.study_report import write_studies

    torch.set_num_threads(cfg.threads)
    output, patterns = Path(cfg.output), cfg.runs
    if OmegaConf.is_list(patterns):
        patterns = OmegaConf.to_container(patterns)
    pages = [Path(page) for page in cfg.publish]
    if cfg.design:
        runs, engine = find_trained(patterns), build(cfg.engine)
        lines = write_design_study(runs, output, cfg.drivers, Path(cfg.exact), pages, engine)
    else:
        lines = write_studies(
            find_runs(patterns), output, cfg.mixed, cfg.pair, cfg.agreement, pages, cfg.prefix
        )
    print("\n".join(lines))
