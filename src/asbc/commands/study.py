"""`asbc study study=NAME`: many runs made and reported; the same command again goes on."""

from omegaconf import DictConfig


def main(cfg: DictConfig) -> None:
    """Train and evaluate what is left, then write the report over all runs."""
    # Imported here, so that --help, completion and mistakes in the arguments answer at once.
    import logging
    from pathlib import Path
    from typing import Any

    from omegaconf import OmegaConf

    from asbc.config import build
    from asbc.errors import InputError
    from asbc.study import Study, execute, run_study

    settings: Any = OmegaConf.to_container(cfg, resolve=True)
    engine = build(settings.pop("engine"))
    study = Study(**settings)
    output, runs = Path(study.output), study.runs()
    failures = run_study(runs, engine, execute)
    failed = [f"{failure.step.title}: see {failure.log}" for failure in failures]
    report = study.report_over(runs)
    if report is not None:
        if execute(report, output / "report.out"):
            failed.append(f"report: see {output / 'report.out'}")
        else:
            logging.info("report: %s", output / "report" / "report.html")
    if failed:
        what = f"{len(failed)} of its commands failed; the same study tries them again"
        raise InputError("\n  ".join([f"study {study.name}: {what}", *failed]))
