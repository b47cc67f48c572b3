"""The library of shipped models: trained from their recipes, packed, measured, and their cards."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from asbc.data.history import ALL, FIRST
from asbc.data.pairs import Pairs
from asbc.engine import Engine
from asbc.errors import InputError
from asbc.evaluation.evaluate import evaluate_posterior
from asbc.evaluation.protocol import EvaluationSettings
from asbc.run import PREDICTIVE, Run
from asbc.shipped import ShippedRun, pack
from asbc.study import Study, execute, run_study

log = logging.getLogger(__name__)

# Test drivers behind a card's scores, and drivers of the prior behind its SBC: with a few hundred,
# one parameter of twenty looks wrong by chance, and what is slightly wrong looks right.
SCORED_DRIVERS, SIMULATED_DRIVERS = 120, 2000
# Quantiles of what training saw: the range in which a model is at home.
RANGE = (0.001, 0.999)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What a model is trained with, and what a user should know that no number says."""

    title: str
    overrides: Sequence[str]
    limits: Sequence[str] = ()


def make_models(
    recipes: Mapping[str, Recipe],
    shared: Sequence[str],
    output: str | Path,
    into: Path,
    engine: Engine,
) -> list[ShippedRun]:
    """Train what is not trained yet, and write a file for each recipe into `into`.

    Args:
        recipes: by name of the model.
        shared: overrides of all of them.
        output: folder of the runs.
        into: folder of the files.
        engine: who trains.
    """
    study = Study(
        name="models",
        output=output,
        variants={name: list(recipe.overrides) for name, recipe in recipes.items()},
        shared={"train": list(shared), "evaluate": None},
    )
    runs = study.runs()
    failures = run_study(runs, engine, execute)
    if failures:
        raise InputError(f"models: a training failed; see {failures[0].log}")
    made = []
    for (name, recipe), planned in zip(recipes.items(), runs, strict=True):
        log.info("%s: packing and measuring", name)
        run = Run.open(planned.folder)
        # The card is about the file as it is read: packed once without it, measured, and again.
        card = model_card(pack(run, name, {}, into), recipe)
        made.append(pack(run, name, card, into))
    return made


def model_card(run: ShippedRun, recipe: Recipe) -> dict[str, Any]:
    """What `asbc models` shows of a model; every number is measured on its simulated roads."""
    splits, config = run.source().splits(), run.config
    steps, dt = config["data"]["context_steps"], config["data"]["dt"]
    prior = run.simulator.prior
    return {
        "title": recipe.title,
        "limits": list(recipe.limits),
        "parameters": [
            {"name": name, "unit": unit, "low": low, "high": high}
            for name, unit, low, high in zip(
                prior.names, prior.units, prior.low.tolist(), prior.high.tolist(), strict=True
            )
        ],
        "context": _context(run, steps * dt),
        "ranges": _ranges(splits.train),
        "leaders": run.source().description,
        "simulations": _budget(config),
        "weights": sum(p.numel() for p in run.posterior.parameters()),
        "robust": run.training.sizes,
        "scores": _scores(run, splits.test, steps),
    }


def _context(run: ShippedRun, seconds: float) -> str:
    """What it reads of a driver."""
    law = run.history
    if law is None:
        return f"{seconds:g} s"
    longest = law.max_segments * seconds
    return f"all segments of a driver from {law.shortest:g} s, {longest:g} s at most"


def _ranges(pairs: Pairs) -> dict[str, list[float]]:
    quantiles = torch.tensor(RANGE)
    columns = {"leader_speed": pairs.leader_speed, "speed": pairs.speed, "gap": pairs.gap}
    return {
        name: [round(float(end), 2) for end in torch.quantile(column[::3], quantiles)]
        for name, column in columns.items()
    }


def _budget(config: Mapping[str, Any]) -> int:
    training = config["training"]
    if config["acquisition"]["name"] == "stream":
        chunk = config["acquisition"]["chunk"]
        return chunk * max(1, round(config["acquisition"]["simulations"] / chunk))
    return training["warmup_simulations"] + training["rounds"] * training["pairs_per_round"]


def _scores(run: ShippedRun, test: Pairs, steps: int) -> dict[str, Any]:
    """Checks of the posterior on drivers from the prior, and coverage on other test drivers."""
    context = FIRST if run.history is None else ALL
    settings = EvaluationSettings(
        samples=200, bootstrap=1, context=context, simulated_drivers=SIMULATED_DRIVERS
    )
    chosen = test.select(range(0, len(test), max(1, len(test) // SCORED_DRIVERS)))
    windows, predictive = run.leaders(steps), run.objective == PREDICTIVE
    assert windows is not None
    metrics = evaluate_posterior(
        *(run.posterior, run.training, chosen, steps, windows, settings, predictive),
        run.history,
    ).metrics
    predicted = metrics["after_context"]
    checks = metrics.get("simulated_drivers", {"n_drivers": 0, "parameters": {}})
    return {
        "simulated_drivers": checks["n_drivers"],
        "test_drivers": len(chosen),
        "sbc": {
            name: {
                "p_value": round(found["sbc_p_value"], 4),
                "passed": found["sbc_inside_band"],
                "contraction": round(found["contraction"], 3),
                "coverage95": round(found["coverage95"], 3),
            }
            for name, found in checks["parameters"].items()
        },
        "coverage95": {v: round(predicted[f"coverage95_{v}"], 3) for v in ("s", "v", "a")},
        "flagged": round(metrics["novelty"]["share_flagged"], 3),
        "warnings": metrics["warnings"],
    }
