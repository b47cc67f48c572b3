"""An evaluation made of random numbers: enough for tables and figures, no model needed."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.figure import Figure

from asbc.data.summary import QUANTITIES, DataSummary
from asbc.evaluation import sbc as calibration
from asbc.evaluation.cases import Cases
from asbc.evaluation.protocol import EvaluationSettings, WindowScores
from asbc.evaluation.results import (
    Evaluation,
    RunInfo,
    averaged,
    summarise,
    write_evaluation,
)
from asbc.evaluation.sbc import PosteriorChecks, rank_test
from asbc.evaluation.scores import SCORES, Score
from asbc.posterior.novelty import Novelty

LABELS = {"gaussian": "Gaussian", "matern": "Matérn"}
NAMES = ("v0", "s0", "T", "a_max", "b", "sigma")
PAIRS, WINDOWS = 8, 4
MEASURES = ("min_ttc", "time_headway", "strongest_braking", "hard_braking")


def make_windows(seed: int, scale: float, scores: Sequence[Score] = SCORES) -> WindowScores:
    rng = np.random.default_rng(seed)
    count = PAIRS * WINDOWS
    table = pd.DataFrame({name: scale * rng.exponential(size=count) for name in averaged(scores)})
    for name in averaged(scores):
        if "coverage" in name or "rate" in name:
            table[name] = rng.uniform(0.9, 1.0, count)
    for x in "sva":
        table[f"pit_{x}"] = rng.uniform(size=count)
    for name in MEASURES:
        table[f"observed_{name}"] = rng.uniform(size=count)
    table.insert(0, "start", np.tile([0, 60, 75, 95], PAIRS))
    table.insert(0, "pair_id", np.repeat([f"r/{i}" for i in range(PAIRS)], WINDOWS))
    return WindowScores(table, {name: rng.uniform(size=(count, 5)) for name in MEASURES})


def make_cases(seed: int) -> Cases:
    rng = np.random.default_rng(seed)
    mean = rng.normal(size=(PAIRS, 3, 51)).cumsum(-1) * 0.1 + 10
    return Cases(
        pair_id=np.array([f"r/{i}" for i in range(PAIRS)]),
        names=np.array(NAMES),
        dt=0.2,
        start=np.full(PAIRS, 75),
        theta=rng.lognormal(size=(PAIRS, 60, len(NAMES))).astype(np.float32),
        mean=mean,
        low=mean - 1,
        high=mean + 1,
        observed=mean + 0.3,
        leader_speed=mean[:, 1] + 1,
    )


def make_checks(seed: int) -> PosteriorChecks:
    rng = np.random.default_rng(seed)
    truth = torch.from_numpy(rng.normal(size=(80, len(NAMES))))
    draws = truth[:, None] + torch.from_numpy(rng.normal(size=(80, 49, len(NAMES))))
    ranks = calibration.rank_statistics(truth, draws).numpy()
    level = calibration.coverage_curve(rng.uniform(size=80))
    return PosteriorChecks(
        names=NAMES,
        ranks=tuple(rank_test(column, 49, rng, replicates=50) for column in ranks.T),
        coverage=level,
        tarp=level,
        contraction=rng.uniform(0, 1, (80, len(NAMES))),
        recovery=calibration.recovery(truth, draws),
        truth=truth.numpy(),
        mean=draws.mean(1).numpy(),
        leak_rate=np.zeros(80),
    )


def make_evaluation(
    seed: int = 0, scale: float = 1.0, context_steps: int = 75, extra: Sequence[Score] = ()
) -> Evaluation:
    settings = EvaluationSettings(extra_scores=extra)
    scores = make_windows(seed, scale, settings.scores)
    after = scores.table["start"].to_numpy() >= 75
    table = scores.table.assign(all_windows=True, after_context=after)
    part = WindowScores(table[after], {k: v[after] for k, v in scores.simulated.items()})
    checks = make_checks(seed)
    embeddings = torch.from_numpy(np.random.default_rng(seed).normal(size=(100, 4)))
    metrics = {
        "all_windows": summarise(scores, 50, 0, settings.scores),
        "after_context": summarise(part, 50, 0, settings.scores),
        "posterior": {"leak_rate": 0.07, "contraction": {"T": 0.8}},
        "novelty": {"share_flagged": 0.25},
        "settings": settings.to_dict(),
        "data": {
            "fingerprint": "f00",
            "n_pairs": PAIRS,
            "context_steps": context_steps,
            "dt": 0.2,
        },
        "simulated_drivers": checks.to_dict(),
        "warnings": [],
        "notes": [],
    }
    novelty = Novelty.fit(embeddings)
    distance = np.ones(PAIRS)
    return Evaluation(
        *(metrics, table, scores.simulated, make_cases(seed), checks, novelty, distance),
        scores=settings.scores,
    )


@pytest.fixture(scope="session")
def evaluation() -> Evaluation:
    return make_evaluation()


@pytest.fixture(scope="session", name="make_evaluation")
def evaluations() -> Callable[..., Evaluation]:
    return make_evaluation


@pytest.fixture(scope="session")
def data_summary() -> DataSummary:
    return DataSummary(
        source="pairs: file.csv",
        dt=0.2,
        recordings=1,
        splits={"all": {"pairs": 8, "followers": 8, "hours": 0.1}},
        classes={"car": 8},
        ranges={name: [0.0, 1.0, 2.0, 3.0, 4.0] for name in QUANTITIES},
        drops={},
    )


def save_pixel(_: Figure, folder: Path, name: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    Figure(figsize=(1, 1)).savefig(folder / f"{name}.png", dpi=1)
    return folder / f"{name}.png"


@contextmanager
def pixels_for_figures() -> Iterator[None]:
    """Save a white pixel for every figure: for tests that are not about how figures look."""
    with pytest.MonkeyPatch.context() as patch:
        for module in ("study_report", "run_report"):
            patch.setattr(f"asbc.reporting.{module}.save_figure", save_pixel)
        yield


@pytest.fixture
def draw_nothing() -> Iterator[None]:
    with pixels_for_figures():
        yield


@pytest.fixture(scope="module")
def draw_nothing_in_module() -> Iterator[None]:
    with pixels_for_figures():
        yield


@pytest.fixture
def save_run(tmp_path) -> Callable[..., Path]:
    """Write an evaluated run below tmp_path, as evaluate.py leaves it."""

    def save(
        name: str,
        residual: str = "gaussian",
        acquisition: str | None = "joint",
        seed: int = 0,
        scale: float = 1.0,
        variant: tuple[str, ...] = (),
        method: str | None = None,
        context_steps: int = 75,
        changes: dict[str, object] | None = None,
    ) -> Path:
        run = tmp_path / "runs" / name
        result = make_evaluation(seed, scale, context_steps)
        for section, values in (changes or {}).items():
            known = result.metrics[section]
            result.metrics[section] = known | values if isinstance(known, dict) else values
        label = f"ASBC-{LABELS[residual]}"
        if acquisition != "joint":
            label += f", {acquisition}"
        result.metrics["run"] = RunInfo(
            method=method or label,
            kind="asbc" if acquisition else "baseline",
            residual=residual,
            residual_label=LABELS[residual],
            acquisition=acquisition,
            variant=variant,
            seed=seed if acquisition else None,
            trained_on="x",
            evaluated_on="pairs: file.csv",
            selected_round=2 if acquisition else None,
            folder=str(run),
            version="0.1.0",
        ).to_dict()
        write_evaluation(result, run / "evaluation")
        if acquisition:
            rounds = {"round": [0, 1, 2, 3], "trained_loss": [4.0, 3.0, 2.5, 2.6]}
            pd.DataFrame(rounds).to_csv(run / "rounds.csv", index=False)
        return run

    return save
