"""Training on several devices: one process each, of which the first owns the run folder.

Lightning would start the others by the command line again, in a folder of their own. Here they get
the composed config on standard input instead, so that seed, folder and whatever a sweep or a
Python program has chosen are those of the first process. On a cluster whose launcher starts all
processes (Slurm, torchrun), nothing is started here.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytorch_lightning as pl
import torch
from omegaconf import DictConfig, OmegaConf
from pytorch_lightning.strategies import DDPStrategy
from pytorch_lightning.strategies.launchers.subprocess_script import _SubprocessScriptLauncher

from asbc.errors import InputError

# The others wait while the first chooses and simulates, which may take longer than torch's limit.
PATIENCE = timedelta(days=7)
# Seconds that the others have to end after the first has.
LAST_SECONDS = 30


class ConfigLauncher(_SubprocessScriptLauncher):
    """Starts this machine's other processes with the run's config, and sees them end.

    Args:
        replaced: Lightning's own, whose environment and number of processes are kept.
        config: the run's, resolved, as YAML.
    """

    def __init__(self, replaced: _SubprocessScriptLauncher, config: str) -> None:
        super().__init__(replaced.cluster_environment, replaced.num_processes, replaced.num_nodes)
        self.config = config

    def launch(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """What the function returns, called when all processes are there."""
        try:
            result = super().launch(function, *args, **kwargs)
        except BaseException as error:
            codes = self._end_all(seconds=1)
            if isinstance(error, RuntimeError) and any(codes):
                raise InputError(_loss_of(codes)) from error
            raise
        self._end_all(LAST_SECONDS)
        return result

    def _end_all(self, seconds: float) -> list[int]:
        """Exit codes of the other processes, waited for; 0 for one that had to be stopped."""
        started = list(self.procs)
        # Lightning watches this list, and would end this process too for a failure of theirs.
        self.procs.clear()
        return [_end(process, seconds) for process in started]

    def _call_children_scripts(self) -> None:
        """Start the processes with the local ranks 1, 2, ..."""
        environment = self.cluster_environment
        os.environ["MASTER_ADDR"] = environment.main_address
        os.environ["MASTER_PORT"] = str(environment.main_port)
        os.environ["NODE_RANK"] = str(environment.node_rank())
        os.environ["LOCAL_RANK"] = "0"
        os.environ["WORLD_SIZE"] = str(self.num_processes * self.num_nodes)
        for rank in range(1, self.num_processes):
            path = os.pathsep.join(filter(None, sys.path))  # what this process can import
            process = subprocess.Popen(
                [sys.executable, "-m", "asbc.training.devices"],
                env=os.environ | {"LOCAL_RANK": str(rank), "PYTHONPATH": path},
                stdin=subprocess.PIPE,
                text=True,
            )
            self.procs.append(process)
            assert process.stdin is not None
            process.stdin.write(self.config)
            process.stdin.close()


def prepare_devices(trainer: pl.Trainer, cfg: DictConfig, drawn: bool) -> None:
    """Let a trainer with several devices start its processes as this module does.

    Args:
        trainer: not yet fitted.
        cfg: the run's, with its seed.
        drawn: whether the seed was drawn by this process.

    Raises:
        InputError: if its strategy is another than DDP in processes of their own, or each process
            has drawn a seed.
    """
    if trainer.world_size == 1:
        return
    strategy = trainer.strategy
    launcher = strategy.launcher
    if not isinstance(strategy, DDPStrategy) or not isinstance(
        launcher, _SubprocessScriptLauncher
    ):
        raise InputError(
            f"trainer.strategy={cfg.trainer.strategy}: several devices need trainer.strategy=ddp"
        )
    elsewhere = launcher.cluster_environment.creates_processes_externally
    if drawn and (elsewhere or trainer.num_nodes > 1):
        raise InputError("seed=null: every process would draw its own; give a number")
    strategy._timeout = PATIENCE
    os.environ.setdefault("OMP_NUM_THREADS", str(cfg.threads))  # or Lightning chooses
    strategy._launcher = ConfigLauncher(launcher, OmegaConf.to_yaml(cfg, resolve=True))


@contextmanager
def own_environment() -> Iterator[None]:
    """Leave no trace of the process group, so that the next fit of this process has its own."""
    before, grouped = dict(os.environ), torch.distributed.is_initialized()
    try:
        yield
    finally:
        if torch.distributed.is_initialized() and not grouped:
            torch.distributed.destroy_process_group()
        os.environ.clear()
        os.environ.update(before)


def _end(process: subprocess.Popen, seconds: float) -> int:
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return 0


def _loss_of(codes: list[int]) -> str:
    """What to tell when the training broke because another process had ended."""
    rank, code = next((rank, code) for rank, code in enumerate(codes, 1) if code)
    return (
        f"process {rank} of the training ended with code {code}; continue the run with "
        "ckpt_path=RUN/checkpoints/last.ckpt, on as many devices as you like"
    )


def _main() -> None:
    """Take part in the training whose config is on standard input."""
    from asbc.training.train import train_run

    cfg = OmegaConf.create(sys.stdin.read())
    assert isinstance(cfg, DictConfig)
    try:
        train_run(cfg, [])
    except InputError as error:
        print(f"error: process {os.environ['LOCAL_RANK']}: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    _main()
