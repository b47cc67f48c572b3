"""Search settings with Optuna; call it again to go on with the same search.

python scripts/optuna_search.py experiment=small estimator.learning_rate=1e-4..3e-3 flow.layers=3,5

KEY=LOW..HIGH is searched on a log scale, KEY=A,B,C among values; the rest goes to `asbc train`.
"""

import argparse
import subprocess
import sys
from pathlib import Path

import optuna
import pandas as pd


def suggest(trial: optuna.Trial, argument: str) -> str:
    """The argument with its range or choices replaced by the trial's value."""
    key, _, value = argument.partition("=")
    if ".." in value:
        low, high = map(float, value.split(".."))
        return f"{key}={trial.suggest_float(key, low, high, log=True)}"
    if "," in value and value[0] not in "[{('\"":
        return f"{key}={trial.suggest_categorical(key, value.split(','))}"
    return argument


def score(folder: Path, metric: str) -> float:
    """The metric, a column of rounds.csv, in the round that training kept."""
    rounds = pd.read_csv(folder / "rounds.csv")
    return float(rounds.loc[rounds["loss"].idxmin(), metric])


def main() -> None:
    """Run the trials one after the other; several of these processes share one search."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=20, help="to add to the search")
    parser.add_argument("--output", type=Path, default=Path("outputs/search"))
    help_text = "column of rounds.csv; validation_es needs callbacks=monitor"
    parser.add_argument("--metric", default="loss", help=help_text)
    parser.add_argument("overrides", nargs="+")
    given = parser.parse_args()

    def objective(trial: optuna.Trial) -> float:
        folder = given.output / f"trial{trial.number}"
        overrides = [suggest(trial, text) for text in given.overrides]
        command = [sys.executable, "-m", "asbc", "train", *overrides, f"hydra.run.dir={folder}"]
        if subprocess.run(command).returncode:
            raise optuna.TrialPruned(f"asbc train failed, see {folder}")
        return score(folder, given.metric)

    given.output.mkdir(parents=True, exist_ok=True)
    study = optuna.create_study(
        study_name=given.metric,
        storage=f"sqlite:///{given.output / 'search.db'}",
        load_if_exists=True,
        # No seed: a search that is continued, or shared, would try the same values again.
        sampler=optuna.samplers.TPESampler(constant_liar=True),
    )
    study.optimize(objective, n_trials=given.trials)
    best = study.best_trial
    print(f"best {given.metric} {best.value:.4f}: {given.output / f'trial{best.number}'}")
    print(" ".join(f"{key}={value}" for key, value in best.params.items()))


if __name__ == "__main__":
    main()
