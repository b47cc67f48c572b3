"""Which runs go into which panel of the figures over many runs."""

from collections.abc import Sequence

import pandas as pd

from asbc.evaluation.run_info import FULL_METHOD, RESIDUAL_NAMES
from asbc.reporting.collect import EvaluatedRun
from asbc.reporting.study_tables import score_table

CONTEXT = "data.context_steps"

Panels = dict[str, dict[str, pd.DataFrame]]


def main_methods(runs: Sequence[EvaluatedRun]) -> dict[str, list[EvaluatedRun]]:
    """Full methods and baselines without further overrides, by label, seeds in order."""
    chosen: dict[str, list[EvaluatedRun]] = {}
    for run in by_seed(runs):
        full = run.info["kind"] != "asbc" or run.info["acquisition"] == FULL_METHOD
        if full and not run.suffix:
            chosen.setdefault(run.label, []).append(run)
    if not chosen:  # every run is a variant: show them all
        for run in by_seed(runs):
            chosen.setdefault(run.label, []).append(run)
    trained_first = sorted(chosen.items(), key=lambda item: item[1][0].info["kind"] != "asbc")
    return dict(trained_first)


def ablation_panels(runs: Sequence[EvaluatedRun]) -> Panels:
    """By residual model, the full method and its ablations, a row per seed; {} without any."""
    plain = [run for run in by_seed(runs) if run.info["kind"] == "asbc" and not run.suffix]
    panels: Panels = {}
    for residual in dict.fromkeys(run.info["residual"] for run in plain):
        some = [run for run in plain if run.info["residual"] == residual]
        names = sorted({run.info["acquisition"] for run in some}, key=_full_first)
        if FULL_METHOD in names and len(names) > 1:
            title = f"ASBC-{RESIDUAL_NAMES.get(residual, residual)}"
            panels[title] = {
                "full" if name == FULL_METHOD else name: score_table(
                    [run for run in some if run.info["acquisition"] == name], "all_windows"
                )
                for name in names
            }
    return panels


def sweep_panels(runs: Sequence[EvaluatedRun]) -> dict[str, dict[float, pd.DataFrame]]:
    """By method, by context length in seconds, a row per seed; {} if no method has two lengths."""
    panels: dict[str, dict[float, list[EvaluatedRun]]] = {}
    for run in runs:
        others = [text for text in run.suffix if not text.startswith(CONTEXT)]
        if run.info["kind"] == "asbc" and not others:
            seconds = run.metrics["data"]["context_steps"] * run.metrics["data"]["dt"]
            panels.setdefault(run.info["method"], {}).setdefault(seconds, []).append(run)
    return {
        method: {s: score_table(some, "all_windows") for s, some in sorted(lengths.items())}
        for method, lengths in panels.items()
        if len(lengths) > 1
    }


def by_seed(runs: Sequence[EvaluatedRun]) -> list[EvaluatedRun]:
    """The runs by method, then seed."""
    return sorted(runs, key=lambda run: (run.label, run.info["seed"] or 0))


def _full_first(name: str) -> tuple[bool, str]:
    return name != FULL_METHOD, name
