"""The paper's table and figures over many evaluated runs: `python report.py runs=GLOB_OR_LIST`."""

import hydra
from omegaconf import DictConfig, OmegaConf


@hydra.main(version_base="1.3", config_path="conf", config_name="report")
def main(cfg: DictConfig) -> None:
    """Find the runs, refuse unlike ones, and write one report per comparable group."""
    # Imported here, so that --help, completion and mistakes in the arguments answer at once.
    from pathlib import Path

    from asbc.reporting.collect import find_runs
    from asbc.reporting.study import write_studies

    patterns = OmegaConf.to_container(cfg.runs) if OmegaConf.is_list(cfg.runs) else cfg.runs
    for line in write_studies(find_runs(patterns), Path(cfg.output), cfg.mixed, cfg.pair):
        print(line)


if __name__ == "__main__":
    main()
