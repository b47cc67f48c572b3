"""Training on several devices: one process each, of which the first owns the run folder.

Lightning would start the others by the command line again, in a folder of their own. Here they get
the composed config on standard input instead, so that seed, folder and whatever a sweep or a
Python program has chosen are those of the first process. On a cluster whose launcher starts all
processes (Slurm, torchrun), nothing is started here.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytorch_lightning as pl
import torch
from omegaconf import DictConfig, OmegaConf
from pytorch_lightning.overrides.distributed import _sync_module_states
from pytorch_lightning.plugins.environments import SLURMEnvironment
from pytorch_lightning.strategies import DDPStrategy
from pytorch_lightning.strategies.launchers.subprocess_script import _SubprocessScriptLauncher
from pytorch_lightning.trainer.connectors.signal_connector import _SignalConnector

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


class SharedGradients(DDPStrategy):
    """DDP with one collective a step: the mean of all processes' gradients, after backward.

    torch's own wrapper broadcasts buffers, which never differ here, and keeps a hook for each of
    many small parameters: several milliseconds of a step that takes twenty.
    """

    def configure_ddp(self) -> None:
        """Leave the model as it is; all processes begin with the first one's weights."""
        assert self.model is not None
        _sync_module_states(self.model)

    def post_backward(self, closure_loss: torch.Tensor) -> None:
        """Average the gradients."""
        assert self.model is not None
        owned = (parameter.grad for parameter in self.model.parameters())
        gradients = [gradient for gradient in owned if gradient is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        torch.distributed.all_reduce(flat)
        parts = flat.div_(self.world_size).split([gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))


class EndAtOnce(_SignalConnector):
    """SIGTERM, by which schedulers preempt, ends the training at once, with exit code 143.

    Lightning would finish the batch and leave with exit code 0, as if the run were done; from
    several processes its handler sends the news round by a collective, and waits for ever where
    the others are in another one. Nothing is lost by ending: a run goes on from its last epoch.
    Who has a handler of his own (submitit, which queues the job again) keeps it.
    """

    def register_signal_handlers(self) -> None:
        """Called by the trainer when a fit begins; `teardown` undoes it."""
        self._original_handlers = {signal.SIGTERM: signal.getsignal(signal.SIGTERM)}
        if not self._has_already_handler(signal.SIGTERM):
            self._register_signal(signal.SIGTERM, _leave)


def _leave(signum: int, _: Any) -> None:
    raise SystemExit(128 + signum)


def prepare_signals(trainer: pl.Trainer) -> None:
    """Let a trainer end by SIGTERM as `EndAtOnce` says, and leave queueing to the scheduler."""
    trainer._signal_connector = EndAtOnce(trainer)
    # Before every batch the first process would tell the others whether it has received one.
    trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None  # type: ignore[method-assign]
    environment = trainer._accelerator_connector.cluster_environment
    if isinstance(environment, SLURMEnvironment):
        # Its checkpoints, from the middle of an epoch, do not resume bit for bit.
        environment.auto_requeue = False


def strategy_of(trainer: DictConfig) -> dict[str, Any]:
    """What a trainer's section is to be built with, besides what it says."""
    return {"strategy": SharedGradients(timeout=PATIENCE)} if trainer.strategy == "ddp" else {}


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

    # The first process ends this one; without it, the next collective fails.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    cfg = OmegaConf.create(sys.stdin.read())
    assert isinstance(cfg, DictConfig)
    try:
        train_run(cfg, [])
    except InputError as error:
        print(f"error: process {os.environ['LOCAL_RANK']}: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    _main()
