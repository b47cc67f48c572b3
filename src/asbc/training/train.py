"""A training run from its config to a fitted posterior on disk."""

import logging
import secrets
import warnings
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pytorch_lightning as pl
import torch
from hydra.utils import get_class
from omegaconf import DictConfig, OmegaConf
from pytorch_lightning.loggers.logger import DummyLogger, Logger

from asbc.arguments import override_text
from asbc.config import build, compose
from asbc.data.source import Splits
from asbc.data.summary import write_summary
from asbc.design.acquisition import Acquisition
from asbc.design.proposal import DesignSpace
from asbc.errors import InputError
from asbc.posterior.estimator import PosteriorEstimator
from asbc.run import Run
from asbc.simulator.robust import ContextSimulator
from asbc.training.callbacks import AtomicCheckpointIO, ResumeCheckpoint
from asbc.training.datamodule import SimulationDataModule
from asbc.training.devices import (
    own_environment,
    prepare_devices,
    prepare_signals,
    strategy_of,
)
from asbc.training.loggers import announce, close_wandb, show_config
from asbc.training.loop import PREDICTIVE_SCORE, SIMULATED, RoundCallback
from asbc.training.settings import LoopSettings, Objective, loop_settings, own_values
from asbc.utils.random import key

log = logging.getLogger(__name__)


def train(
    data: pd.DataFrame | str | Path | None = None,
    folder: str | Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    **choices: Any,
) -> Run:
    """Train a posterior estimator; what `asbc train` does, from Python.

    Args:
        data: a pairs table or a file of one; None for the embedded recordings, or whatever
            `choices` say, e.g. data="highd" with overrides {"data.root": DIR}.
        folder: the run folder; None for a new one below outputs/.
        overrides: settings by their dotted names, e.g. {"training.rounds": 2}.
        choices: config groups and top-level settings, e.g. experiment="robust_stream",
            residual="matern", seed=1.

    Returns:
        The finished run, as `Run.open` gives it.

    Example:
        >>> run = train(table, folder, small, experiment="smoke", residual="matern")
        >>> run, run.label
        (Run('outputs/mine'), 'ASBC-Matérn')
    """
    path = Path(folder or f"outputs/{datetime.now():%Y-%m-%d/%H-%M-%S-%f}").absolute()
    given = dict(choices)
    if data is not None:
        given |= {"data": "pairs", "data.path": str(_as_file(data, path).absolute())}
    texts = [f"{k}={override_text(v)}" for k, v in {**given, **(overrides or {})}.items()]
    cfg = compose("train", [*texts, f"folder={override_text(str(path))}"])
    loop = train_run(cfg, texts)
    if loop.best_round < 0:
        raise InputError(f"{path}: no round was finished, so there is no model")
    return Run.open(path)


def train_run(cfg: DictConfig, overrides: Sequence[str]) -> RoundCallback:
    """Build everything from the config, run the loop and leave a run folder at `cfg.folder`.

    Args:
        cfg: of conf/train.yaml.
        overrides: what was typed to get it, for the record.

    Returns:
        The loop, which knows the best round, its loss and the tables.
    """
    quiet_lightning()
    drawn = cfg.seed is None
    cfg.seed = secrets.randbelow(2**31) if drawn else cfg.seed
    config: Any = OmegaConf.to_container(cfg, resolve=True)
    # Whatever can be refused is, before a folder is touched and data are read.
    acquisition, settings = build_strategy(config)
    objective: Objective = build(cfg.objective)
    source, (simulator, estimator) = build(cfg.data), build_model(cfg)
    if estimator.posterior.pool is not None:
        source = source.for_segments(estimator.posterior.pool.shortest)
    run = Run(cfg.folder)
    loop = build(cfg.loop)(settings=settings, seed=cfg.seed, run=run)
    checkpoint = run.checkpoint(cfg.ckpt_path)
    if cfg.init is not None:
        start_at(Run.open(cfg.init), config, estimator, loop)
    trainer = build(
        cfg.trainer,
        callbacks=[loop, ResumeCheckpoint(run.last), *map(build, cfg.callbacks.values())],
        logger=False,  # they write to the folder, which has to be claimed first
        plugins=[AtomicCheckpointIO()],
        **strategy_of(cfg.trainer),
    )
    prepare_signals(trainer)
    first = trainer.is_global_zero  # the process that owns the folder; mostly there is no other
    with own_environment():
        prepare_devices(trainer, cfg, drawn)
        if first:
            show_config(config)
        with run.claim(resuming=checkpoint is not None, rank=trainer.global_rank):
            if first:
                saved = OmegaConf.merge(cfg, {"ckpt_path": None, "folder": None})
                run.write(OmegaConf.to_yaml(saved, resolve=True), cfg.seed, overrides)
            torch.set_num_threads(cfg.threads)
            splits = source.splits()
            pool = estimator.posterior.pool
            stage = objective.stage(
                loop, simulator.simulator, splits, source.context_steps, pool, cfg.seed, run
            )
            if stage is not None:  # after the loop, whose hooks come first
                trainer.callbacks.insert(1, stage)
            space = design_space(cfg, simulator, splits, acquisition)
            if first:
                run.save_leaders(space.bank.real)
            if first and checkpoint is None:
                write_summary(splits, run.path)
            transform = estimator.posterior.transform
            data = SimulationDataModule(
                space, simulator, acquisition, settings, transform, build(cfg.history.law)
            )
            trainer.loggers = _loggers(cfg, idle=not first or bool(trainer.fast_dev_run))
            announce(trainer.loggers, config)
            _fit(trainer, estimator, data, checkpoint, run)
            if (loop if stage is None else stage).finished and first:
                run.save_novelty()
    return loop


def start_at(
    other: Run, config: Mapping[str, Any], estimator: PosteriorEstimator, loop: RoundCallback
) -> None:
    """Give the estimator the weights of a finished run, in place of a loop of its own.

    Args:
        other: `init=RUN`.
        config: this run's, resolved.
        estimator: of this run.
        loop: of this run; it ends before its first round.
    """
    if config["objective"]["name"] == SIMULATED:
        raise InputError(
            "init=RUN is where a later stage starts, but objective=simulated has none; use "
            "objective=predictive, or leave init at null"
        )
    differing = other.differences(config) + [
        f"estimator.{name}"
        for name in ("encoder", "flow", "transform", "pool")
        if _weights_of(other.config["estimator"][name]) != _weights_of(config["estimator"][name])
    ]
    if differing:
        raise InputError(
            f"init={other.shown}: differs from this run in {', '.join(differing)}; give the "
            "settings that it was trained with"
        )
    # What only this run has, a learned residual, keeps its first weights.
    first = estimator.posterior.state_dict()
    found = other.posterior.state_dict()
    estimator.posterior.load_state_dict(first | {k: v for k, v in found.items() if k in first})
    loop.adopt(estimator, other.holdout_loss)


def _weights_of(part: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """A part's settings that its weights depend on: dropout may change between two stages."""
    return part and {name: value for name, value in part.items() if name != "dropout"}


def build_strategy(config: Mapping[str, Any]) -> tuple[Acquisition, LoopSettings]:
    """What chooses simulations, and the loop's settings; raises if the two cannot work together.

    Args:
        config: the whole, resolved.
    """
    section = config["acquisition"]
    acquisition = build(own_values(get_class(section["_target_"]), section))
    return acquisition, loop_settings(config, acquisition)


def build_model(cfg: DictConfig) -> tuple[ContextSimulator, PosteriorEstimator]:
    """What simulates and what is trained, with first weights that belong to the seed."""
    torch.manual_seed(key(cfg.seed, "weights"))
    return build(cfg.robust), build(cfg.estimator)


def design_space(
    cfg: DictConfig, simulator: ContextSimulator, splits: Splits, acquisition: Acquisition
) -> DesignSpace:
    """What the loop designs with, made from the training split; its hold-out's leaders are not."""
    observed = acquisition.observed(splits.train, cfg.data.context_steps, cfg.seed)
    bank = build(cfg.bank)
    try:
        holdout = bank(splits.validation, synthetic_cap=0)
    except InputError:
        log.warning(
            "no leader window of %d samples fits into the validation split: the hold-out is "
            "simulated behind training leaders",
            cfg.data.context_steps,
        )
        holdout = None
    likelihood = simulator.likelihood if cfg.history.law is None else None
    return DesignSpace(
        simulator.prior, bank(splits.train), observed, cfg.seed, holdout, likelihood
    )


def last_words(run: Run, loop: RoundCallback) -> str:
    """What the user sees at the end: the run folder, the result and the next command."""
    if loop.best_round < 0:
        return f"run folder: {run.shown}\nno round was finished, so there is no model"
    predictive = [row for row in loop.round_rows if PREDICTIVE_SCORE in row]
    result = f"best round {loop.best_round}, hold-out loss {loop.best_loss:.4f}"
    if predictive:
        result = (
            f"trained to predict: score of the validation drivers {loop.result:.4f} "
            f"({predictive[0][PREDICTIVE_SCORE]:.4f} before)"
        )
    return f"run folder: {run.shown}\n{result}\nnext: asbc evaluate run={run.shown}"


def _loggers(cfg: DictConfig, idle: bool) -> list[Logger]:
    """The run's loggers, or as many that do nothing."""
    return [DummyLogger() if idle else build(section) for section in cfg.logger.values()]


def _fit(
    trainer: pl.Trainer,
    estimator: PosteriorEstimator,
    data: SimulationDataModule,
    checkpoint: str | None,
    run: Run,
) -> None:
    """Run the loop, from the checkpoint if there is one, to the best weights."""
    try:
        trainer.fit(estimator, datamodule=data, ckpt_path=checkpoint)
    finally:
        close_wandb(trainer.loggers, run)


def _as_file(data: pd.DataFrame | str | Path, folder: Path) -> Path:
    """A file that holds the table; one of the run's own for a table in memory."""
    if not isinstance(data, pd.DataFrame):
        return Path(data)
    folder.mkdir(parents=True, exist_ok=True)
    data.to_parquet(folder / "pairs.parquet", index=False)
    return folder / "pairs.parquet"


def quiet_lightning() -> None:
    """Silence Lightning's notes on devices and loading, which tell the user nothing here."""
    for package in ("pytorch_lightning", "lightning_fabric"):
        logging.getLogger(package).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", message=".*treespec, LeafSpec.*")
