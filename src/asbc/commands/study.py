"""`asbc study study=NAME`: many runs made and reported; the same command again goes on."""

from omegaconf import DictConfig


def main(cfg: DictConfig) -> None:
    """Train and evaluate what is left, then write the report over all runs."""
    import logging
    from pathlib import Path
    from typing import Any

    from omegaconf import OmegaConf

    from asbc.arguments import quoted
    from asbc.errors import InputError
    from asbc.study import Overrides, Step, execute, plan_study, run_study

    given: Any = OmegaConf.to_container(cfg, resolve=True)
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
    code = 0
    if shared.evaluate is not None:
        everything = "[" + ",".join(quoted(run.folder) for run in runs) + "]"
        arguments = (f"runs={everything}", f"output={quoted(folder / 'report')}")
        code = execute(Step("report", "report", arguments), folder / "report.out")
        where = folder / "report" / "report.html" if not code else "see report.out"
        logging.info("report: %s", where)
    if failures or code:
        where = "".join(f"\n  {failure.step.name}: see {failure.log}" for failure in failures)
        raise InputError(f"{len(failures)} runs failed; the same command tries them again{where}")
