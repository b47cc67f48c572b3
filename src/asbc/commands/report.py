"""`asbc report runs=GLOB_OR_LIST`: the paper's table and figures over many evaluated runs."""

from omegaconf import DictConfig


def main(cfg: DictConfig) -> None:
    """Find the runs, refuse unlike ones, and write one report per comparable group."""
    # Imported here, so that --help, completion and mistakes in the arguments answer at once.
    from pathlib import Path
    from typing import Any

    from omegaconf import OmegaConf

    from asbc.reporting.collect import find_runs
    from asbc.reporting.study_report import write_studies

    patterns: Any = cfg.runs
    if OmegaConf.is_list(cfg.runs):
        patterns = OmegaConf.to_container(cfg.runs)
    for line in write_studies(find_runs(patterns), Path(cfg.output), cfg.mixed, cfg.pair):
        print(line)
