"""What the engine's tests let workers do; importable by name, as a worker's work must be."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from asbc.errors import InputError


def draw(seed: int, name: str) -> bytes:
    # Keyed as asbc.utils.random does, which would load torch into every worker.
    return np.random.default_rng([seed, *name.encode()]).standard_normal(1000).tobytes()


def draw_after_deaths(folder: str, piece: tuple[str, int]) -> bytes:
    """The draws of a piece whose first workers are killed."""
    name, deaths = piece
    for i in range(deaths):
        mark = Path(folder, f"{name}-{i}")
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
    return draw(7, name)


def hang_once(folder: str, name: str) -> bytes:
    mark = Path(folder, name)
    if name == "c" and not mark.exists():
        mark.touch()
        time.sleep(600)
    return draw(7, name)


def refuse(slow: set[str], name: str) -> str:
    """Refuse every name but a; those in `slow` take their time."""
    time.sleep(0.5 if name in slow else 0)
    if name != "a":
        raise InputError(f"{name} is refused")
    return name


class Awkward(Exception):
    """Cannot be built again from its message, hence not be sent."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(one + two)


def be_awkward(_: None, name: str) -> None:
    raise Awkward(name, " is awkward")


def unsendable(_: None, name: str) -> object:
    return lambda: name


def threads(_: None, name: str) -> tuple[int, str | None]:
    import torch

    return torch.get_num_threads(), os.environ.get("OMP_NUM_THREADS")


def start_and_wait(folder: str, name: str) -> None:
    """A piece that starts a process of its own, says who both are, and takes long."""
    own = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    Path(folder, f"{name}.tmp").write_text(f"{os.getpid()} {own.pid}")
    Path(folder, f"{name}.tmp").rename(Path(folder, name))
    time.sleep(600)


def fail_to_set_up() -> None:
    raise InputError("no such model")


def die_when_set_up() -> None:
    os._exit(3)


def counted(folder: str) -> str:
    """What is set up: counted in the folder."""
    Path(folder, f"setup-{os.getpid()}-{time.monotonic_ns()}").touch()
    return folder


def whoami(folder: str, name: str) -> int:
    time.sleep(0.05)
    return os.getpid()


def dying_batch(folder: str, build):
    """A batch of drivers whose first worker is killed when it has sampled."""
    batch = build()

    def call(*arguments):
        found = batch(*arguments)
        mark = Path(folder, "died")
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    return call


def cheap_batch():
    """Draws of each driver, compiled, without a sampler."""
    import jax

    return jax.jit(jax.vmap(lambda random, own: own * jax.random.normal(random, (100,))))
