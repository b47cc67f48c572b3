"""A run on disk: opened, claimed, recorded and loaded here, and nowhere else.

A run folder holds everything that evaluation and calibration need: config, weights, the leaders it
was trained behind and the yardstick for drivers unlike them. Copied to another machine it works
there, with the training data absent. Opening one imports nothing heavy, so that a command can look
at its run before it starts.
"""

from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from asbc.config import build, require_trusted
from asbc.errors import InputError
from asbc.trained_model import PREDICTIVE, Model
from asbc.utils.files import load_tensors, locked, remove_leftovers, save_tensors, write_text

if TYPE_CHECKING:
    import pandas as pd

    from asbc.calibration.fit import Fit
    from asbc.data.pairs import Pairs
    from asbc.data.source import DataSource
    from asbc.data.windows import LeaderWindows
    from asbc.design.history_law import HistoryLaw
    from asbc.evaluation.results import Evaluation
    from asbc.live import Live
    from asbc.posterior import Posterior
    from asbc.posterior.novelty import Novelty
    from asbc.simulator import Simulator
    from asbc.simulator.robust import ContextSimulator

PACKAGES = ("asbc", "torch", "pytorch-lightning", "hydra-core", "nflows", "numpy", "pandas")
# Overrides that do not make another method: where it ran, how it was logged, which seed.
INCIDENTAL = (
    *("seed", "threads", "tags", "ckpt_path", "logger", "callbacks", "debug", "hydra", "data"),
    *("folder", "init"),
)
# The same for single settings: a training on several devices is that of one.
INCIDENTAL_SETTINGS = tuple(
    f"trainer.{name}" for name in ("accelerator", "devices", "num_nodes", "strategy")
)
# The paper's full method, which tables do not name.
FULL_METHOD = "joint"
# What defines the posterior of a context.
POSTERIOR_SECTIONS = ("model", "residual", "prior")
POSTERIOR_DATA = ("dt", "context_steps")
# Sections that become objects when a run is used, if they are there.
BUILT = ("data", "robust", "estimator", "history")
# Drivers behind the yardstick of novelty, and their seed.
YARDSTICK_DRIVERS, YARDSTICK_SEED = 1000, 0

LAST = "last"  # ckpt_path of a job that may have been started before


class Run:
    """A run folder: what is in it, who may write to it, and the model it holds.

    Args:
        path: the folder; nothing is read before it is asked for.

    Example:
        >>> Run("outputs/demo").best.as_posix()
        'outputs/demo/checkpoints/best.ckpt'
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config_file = self.path / "config.yaml"
        self.record_file = self.path / "run.json"
        self.last = self.path / "checkpoints" / "last.ckpt"
        self.best = self.path / "checkpoints" / "best.ckpt"
        self.epochs = self.path / "metrics.csv"  # a row per epoch
        self.rounds = self.path / "rounds.csv"  # a row per round
        self.leaders_file = self.path / "leaders.pt"
        self.novelty_file = self.path / "novelty.pt"
        self.draws = self.path / "posterior.nc"  # of a Bayesian baseline
        self.evaluation = self.path / "evaluation"

    def __repr__(self) -> str:
        return f"Run({self.shown!r})"

    @classmethod
    def open(cls, path: str | Path) -> Run:
        """A finished run, or the shipped model of that name (`asbc models` lists them).

        A clear error if it is none, unfinished, or of another version.

        Example:
            >>> Run.open("no/such/run")
            Traceback (most recent call last):
            ...
            asbc.errors.InputError: run=no/such/run: no such folder
        """
        from asbc.shipped import ShippedRun, names

        if str(path) in names():
            return ShippedRun.open(path)
        run = cls(Path(path).absolute())
        if not run.path.is_dir():
            bare = len(Path(path).parts) == 1
            hint = f", and no shipped model ({', '.join(names())})" if bare else ""
            raise InputError(f"run={path}: no such folder{hint}")
        if not run.record_file.is_file() or not run.config_file.is_file():
            raise InputError(
                f"run={path}: not a run folder; expected {run.record_file.name} and "
                f"{run.config_file.name}, as `asbc train` writes them"
            )
        if not same_series(run.version, version("asbc")):
            raise InputError(
                f"run={path}: trained with asbc {run.version}, but this is asbc "
                f"{version('asbc')}; install asbc {run.version} or train again"
            )
        if not run.best.is_file():
            raise InputError(
                f"run={path}: no checkpoints/best.ckpt, so no round was finished; continue the "
                f"run with asbc train ckpt_path={run.shown}/checkpoints/last.ckpt"
            )
        require_trusted({name: run.config.get(name) for name in BUILT}, f"run={path}")
        return run

    @property
    def shown(self) -> str:
        """The path as a user would type it: relative where the folder is below the current one."""
        here = Path.cwd()
        return str(self.path.relative_to(here) if self.path.is_relative_to(here) else self.path)

    # What a process that fills the folder does.

    def checkpoint(self, given: str | None) -> str | None:
        """What `ckpt_path` means here: `last` is this folder's own, if it has one already."""
        if given == LAST:
            return str(self.last) if self.last.exists() else None
        return given

    @contextmanager
    def claim(self, resuming: bool, rank: int = 0) -> Iterator[None]:
        """Hold the folder for this process; refuse one in use, or that holds another run.

        Of the processes of one training only the first holds it; the others do not write.
        """
        if rank > 0:
            yield
            return
        self.path.mkdir(parents=True, exist_ok=True)
        with locked(self.path / ".lock") as mine:
            if not mine:
                raise InputError(f"{self.shown}: another process is writing to this run")
            if self.last.exists() and not resuming:
                raise InputError(
                    f"{self.shown} already holds a run; continue it with "
                    f"ckpt_path={self.shown}/checkpoints/last.ckpt or choose another folder"
                )
            remove_leftovers(self.path)
            yield

    def write(self, config_yaml: str, seed: int, overrides: Sequence[str]) -> None:
        """Save the resolved config and a record of what the run was made with."""
        write_text(self.config_file, config_yaml)
        made_with = {
            "seed": seed,
            "versions": {name: v for name in PACKAGES if (v := _version(name))},
            "python": platform.python_version(),
            "git_commit": git_commit(),
        }
        # A resumed run keeps the record of its beginning.
        known = json.loads(self.record_file.read_text()) if self.last.exists() else {}
        own = [text for text in overrides if key_of(text) not in ("ckpt_path", "seed", "folder")]
        content = {**made_with, **known, "overrides": own}
        write_text(self.record_file, json.dumps(content, indent=2) + "\n")

    def save_leaders(self, windows: LeaderWindows) -> None:
        """Keep the leader windows that drivers are simulated behind."""
        save_tensors(windows._asdict(), self.leaders_file)

    def save_novelty(self) -> None:
        """Keep the yardstick of the trained posterior, which must be there."""
        save_tensors(vars(self._measure_novelty()), self.novelty_file)

    # What it was made with.

    @cached_property
    def record(self) -> dict[str, Any]:
        """Seed, versions, commit and overrides."""
        return json.loads(self.record_file.read_text())

    @cached_property
    def config(self) -> dict[str, Any]:
        """The resolved config, plain values."""
        return yaml.safe_load(self.config_file.read_text())

    @property
    def seed(self) -> int:
        """The run's seed."""
        return self.record["seed"]

    @property
    def overrides(self) -> tuple[str, ...]:
        """Its command line."""
        return tuple(self.record["overrides"])

    @property
    def version(self) -> str:
        """The version of the package that made it."""
        return self.record.get("versions", {}).get("asbc", "unknown")

    @property
    def variant(self) -> tuple[str, ...]:
        """Overrides beyond residual and acquisition that make this run another method."""
        named = [*INCIDENTAL, "residual", "acquisition"]
        if "paper" in self.config.get("tags", ()):  # the experiment chose only those two
            named.append("experiment")
        return tuple(
            text
            for text in self.overrides
            if key_of(text).split(".")[0].split("/")[0] not in named
            and key_of(text) not in INCIDENTAL_SETTINGS
            or key_of(text) == "data.context_steps"
            or key_of(text).startswith(("residual.", "acquisition."))
        )

    @property
    def label(self) -> str:
        """The paper's name of the method; other acquisitions than the full one are named."""
        name = f"ASBC-{self.config['residual']['label']}"
        acquisition = self.config["acquisition"]["name"]
        name = name if acquisition == FULL_METHOD else f"{name}, {acquisition}"
        wanted = self.config.get("objective", {}).get("name")
        return f"{name}, trained to predict" if wanted == PREDICTIVE else name

    def differences(self, other: Mapping[str, Any]) -> list[str]:
        """In what this run and another config describe different posteriors of a context."""
        mine = self.config
        pairs = [(name, mine[name], other[name]) for name in POSTERIOR_SECTIONS]
        pairs += [(f"data.{n}", mine["data"][n], other["data"][n]) for n in POSTERIOR_DATA]
        return [name for name, ours, theirs in pairs if ours != theirs]

    # What it holds.

    def source(self) -> DataSource:
        """The data it was trained on."""
        return build(self.config["data"])

    @cached_property
    def training(self) -> ContextSimulator:
        """What its training trajectories were simulated by."""
        return build(self.config["robust"])

    @cached_property
    def history(self) -> HistoryLaw | None:
        """How much was known of its simulated drivers; None: one trajectory of each."""
        law = self.config.get("history", {}).get("law")  # runs from before have no such section
        return None if law is None else build(law)

    @property
    def simulator(self) -> Simulator:
        """The forward model that draws of the posterior drive in: law, residuals, kinematics.

        It has learned residuals if the posterior was trained along with some.
        """
        if self.posterior.learned is not None:
            self.posterior.learned.requires_grad_(False)  # it is not trained any more
        return self.posterior.teach(self.training.simulator)

    @cached_property
    def _weights(self) -> dict[str, Any]:
        return load_tensors(self.best)

    @property
    def selected_round(self) -> int:
        """The round whose weights were kept."""
        return int(self._weights["round"])

    @property
    def holdout_loss(self) -> float:
        """Loss of the kept weights on simulated drivers; NaN for those of a later stage."""
        return float(self._weights.get("loss", float("nan")))

    @property
    def objective(self) -> str:
        """What the kept weights were trained for: simulated or predictive."""
        return self._weights.get("objective", "simulated")

    @property
    def widening(self) -> float:
        """What the residual's sigma is multiplied by in draws that were trained to predict."""
        return float(self.posterior.widening.max())

    @cached_property
    def posterior(self) -> Posterior:
        """The trained density q(theta | trajectory)."""
        estimator = build(self.config["estimator"])
        try:
            estimator.on_load_checkpoint(self._weights)
            # Runs from before know of no lags.
            known = {"posterior.lags": estimator.posterior.lags} | self._weights["state_dict"]
            estimator.load_state_dict(known)
        except (RuntimeError, KeyError) as error:
            raise InputError(
                f"{self.best}: its weights do not fit the model that this version builds from "
                f"{self.config_file.name} ({str(error).splitlines()[0]}); train again"
            ) from error
        return estimator.posterior.eval()

    def model(self, context_steps: int | None = None, context: str | None = "first") -> Model:
        """Posterior and simulator together.

        Args:
            context_steps: samples of a segment at most; None for those of the training.
            context: see `Model`; None: all that is known of a driver, if the run can read it.
        """
        config = self.config
        return Model(
            self.posterior,
            self.simulator,
            context_steps or config["data"]["context_steps"],
            config["residual"]["name"],
            not self.training.exact,
            self.objective,
            context or ("first" if self.history is None else "all"),
        )

    def leaders(self, steps: int) -> LeaderWindows | None:
        """Leaders of its training split, `steps` long; None if it was trained behind shorter."""
        from asbc.data.windows import LeaderWindows

        windows = LeaderWindows(**load_tensors(self.leaders_file))
        if steps > windows.leader_speed.shape[1]:
            return None
        return windows._replace(leader_speed=windows.leader_speed[:, :steps].contiguous())

    def novelty(self, context_steps: int, context: str = "first") -> Novelty | None:
        """The yardstick for contexts unlike the training's; None for longer contexts than its.

        Args:
            context_steps: samples of a segment at most.
            context: `first`: single segments; `all`: drivers' histories, see `Model`.
        """
        from asbc.posterior.novelty import Novelty

        own = self.config["data"]["context_steps"]
        if context == "all":
            return self._measure_histories(context_steps) if context_steps <= own else None
        if context_steps == own and self.novelty_file.is_file():
            return Novelty(**load_tensors(self.novelty_file))
        return self._measure_novelty(context_steps) if context_steps <= own else None

    def _measure_novelty(self, context_steps: int | None = None) -> Novelty:
        from asbc.posterior.novelty import Novelty
        from asbc.simulator.robust import simulate_drivers

        windows = self.leaders(context_steps or self.config["data"]["context_steps"])
        assert windows is not None
        simulated = simulate_drivers(self.training, windows, YARDSTICK_DRIVERS, YARDSTICK_SEED)
        return Novelty.fit(self.posterior.encode(simulated.states))

    def _measure_histories(self, context_steps: int) -> Novelty:
        """As `_measure_novelty`, for drivers of whom as much is known as in training."""
        from asbc.posterior.novelty import Novelty
        from asbc.simulator.robust import simulate_histories

        windows, law = self.leaders(context_steps), self.history
        assert windows is not None and law is not None
        simulated = simulate_histories(
            self.training, windows, YARDSTICK_DRIVERS, YARDSTICK_SEED, law.draw
        )
        return Novelty.fit(self.posterior.encode(simulated.states))

    # What to do with it.

    def calibrate(self, data: pd.DataFrame | str | Path | Pairs, **settings: Any) -> Fit:
        """A posterior for every driver; see `asbc.calibration.fit.calibrate` for the settings.

        Args:
            data: a pairs table, a file of one, or pairs.
            settings: samples, seed, refine, on_error, min_duration, context.
        """
        from asbc.calibration.fit import calibrate

        return calibrate(data, self, **settings)

    def follow(self, name: str = "driver", **settings: Any) -> Live:
        """A driver to be watched live: its posterior with every sample; see `asbc.live.Live`.

        Args:
            name: of the driver.
            settings: seed, observation, surprise.
        """
        from asbc.live import Live

        return Live(self.model(context=None), name, **settings)

    def evaluate(
        self, data: pd.DataFrame | str | Path | Pairs | None = None, **settings: Any
    ) -> Evaluation:
        """Scores of 10 s predictions; `.metrics["after_context"]["es_s"]` is one of them.

        Args:
            data: a pairs table, a file of one, or pairs, all of which are scored; None for the
                test split of its own data.
            settings: of `asbc.evaluation.protocol.EvaluationSettings`, e.g. samples=200.
        """
        from asbc.evaluation.evaluate import evaluate_run

        return evaluate_run(self, data, **settings)


def key_of(override: str) -> str:
    """The key of a command-line override.

    Example:
        >>> key_of("+training.rounds=3")
        'training.rounds'
    """
    return override.partition("=")[0].lstrip("+~")


def git_commit() -> str | None:
    """The commit of the source tree, with '+' where files differ from it; None outside git."""
    here = Path(__file__).parent
    try:
        commit = _git(here, "rev-parse", "HEAD")
        return commit + (
            "+" if _git(here, "status", "--porcelain", "--untracked-files=no") else ""
        )
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def same_series(first: str, second: str) -> bool:
    """Whether two versions can use each other's models.

    Example:
        >>> same_series("0.3.0", "0.3.1"), same_series("0.3.0", "0.4.0")
        (True, False)
    """
    return first.split(".")[:2] == second.split(".")[:2]
