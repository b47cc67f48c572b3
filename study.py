"""The whole study at one command: `python study.py scale=small`; again, to go on where it was."""

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import hydra
from omegaconf import DictConfig, OmegaConf

if TYPE_CHECKING:
    from asbc.study.plan import Run, Step

ROOT = Path(__file__).parent


@hydra.main(version_base="1.3", config_path="conf", config_name="study")
def main(cfg: DictConfig) -> None:
    """Train and evaluate what is left, then write the report over all runs."""
    from asbc.study.plan import Overrides, Step, plan_study
    from asbc.study.runner import run_study
    from asbc.utils.checks import InputError

    given = OmegaConf.to_container(cfg, resolve=True)
    alone = {name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}

    def execute(step: Step, output: Path) -> int:
        with output.open("a") as file:
            return subprocess.run(
                [sys.executable, str(ROOT / step.script), *step.arguments],
                stdout=file,
                stderr=subprocess.STDOUT,
                env=os.environ | alone,
            ).returncode

    shared = Overrides(
        train=[*given["scale"]["train"], *given["overrides"]],
        evaluate=given["scale"]["evaluate"],
        baseline=[*given["scale"]["baseline"], *given["overrides"]],
    )
    folder = Path(cfg.output)
    runs = plan_study(
        folder, given["variants"], given["baselines"], given["seeds"], shared, given["only"]
    )
    failures = run_study(runs, cfg.jobs, execute)
    code = 0 if shared.evaluate is None else write_report(runs, folder, execute)
    if failures or code:
        where = "".join(f"\n  {failure.step.name}: see {failure.log}" for failure in failures)
        raise InputError(f"{len(failures)} runs failed; the same command tries them again{where}")


def write_report(
    runs: "Sequence[Run]", folder: Path, execute: "Callable[[Step, Path], int]"
) -> int:
    """The report over all runs; returns the exit code of `report.py`."""
    from asbc.study.plan import Step
    from asbc.training.folder import quoted

    everything = "[" + ",".join(quoted(run.folder) for run in runs) + "]"
    report = Step(
        "report", "report.py", (f"runs={everything}", f"output={quoted(folder / 'report')}")
    )
    code = execute(report, folder / "report.out")
    logging.info("report: %s", folder / "report" / "report.html" if not code else "see report.out")
    return code


if __name__ == "__main__":
    main()
