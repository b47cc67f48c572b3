"""Workers that are processes of this machine."""

import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import connection, get_context, parent_process
from typing import Any

from asbc.engine.pool import (
    ONE_THREAD,
    Died,
    Engine,
    Function,
    OwnProcess,
    Pool,
    Reply,
    Setup,
    Worker,
    Workers,
    attempt,
    one_thread,
    packed,
)

# Fresh interpreters: a fork would inherit the locks of torch's and JAX's threads.
SPAWN = get_context("spawn")


@dataclass(frozen=True, kw_only=True)
class LocalEngine(Engine):
    """Processes on this machine, one thread each; one worker is this process itself.

    Args: see `Engine`.
    """

    def pool(self, setup: Setup | None = None, most: int | None = None) -> Pool:
        """See `Engine`."""
        workers = self.workers or cores()
        if most is not None:
            workers = min(workers, most)
        # A worker's own workers would fight over the cores that the others have.
        if workers <= 1 or parent_process() is not None:
            return OwnProcess(setup)
        return LocalWorkers(setup, workers, self)


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class LocalWorkers(Workers):
    """See `Workers`."""

    def __init__(self, setup: Setup | None, limit: int, engine: Engine) -> None:
        super().__init__(limit, engine)
        self._setup = setup

    def start(self) -> Worker:
        """See `Workers`."""
        return Process(self._setup)

    def wait(self, workers: Sequence[Worker], timeout: float | None) -> list[Worker]:
        """See `Workers`."""
        by_channel = {w.channel: w for w in workers if isinstance(w, Process)}
        return [by_channel[c] for c in connection.wait(list(by_channel), timeout)]  # type: ignore[index]


class Process(Worker):
    """One process and our end of the line to it."""

    def __init__(self, setup: Setup | None) -> None:
        self.channel, theirs = SPAWN.Pipe()
        # By pickle alone, as everything that is sent: torch's own way shares memory.
        content = pickle.dumps(setup, protocol=5)
        self.process = SPAWN.Process(target=serve, args=(theirs, content), daemon=True)
        with _without_interrupts(), _environment(ONE_THREAD):
            self.process.start()
        theirs.close()

    def give(self, function: Function, value: Any) -> None:
        """See `Worker`."""
        content = pickle.dumps((function, value), protocol=5)
        with suppress(OSError):  # a dead worker is noticed when its reply is waited for
            self.channel.send_bytes(content)

    def take(self) -> Reply:
        """See `Worker`."""
        try:
            return pickle.loads(self.channel.recv_bytes())
        except (EOFError, OSError):
            self.process.join(5)
            return Died(_last_words(self.process.exitcode))

    def kill(self) -> None:
        """End it and all that it started."""
        with suppress(ProcessLookupError, PermissionError, TypeError):
            os.killpg(self.process.pid, signal.SIGKILL)  # type: ignore[arg-type]
        self.process.kill()
        self.process.join()
        self.process.close()
        self.channel.close()


def serve(channel: connection.Connection, setup: bytes) -> None:
    """A worker's life: set up, then one piece after the other until nobody sends any more."""
    os.setsid()  # a group of its own, so that whatever a piece starts can be ended with it
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    context: list[Any] = []

    def prepare() -> None:
        build: Callable[[], Any] | None = pickle.loads(setup)
        context.append(build() if build else None)
        one_thread()

    def work(content: bytes) -> Any:
        function, value = pickle.loads(content)
        one_thread()
        return function(context[0], value)

    channel.send_bytes(packed(attempt(prepare)))
    with suppress(EOFError, OSError):
        while True:
            channel.send_bytes(packed(attempt(work, channel.recv_bytes())))


def _end_with_parent() -> None:
    """A main process that was killed cannot end its workers: they do it themselves."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os.killpg(0, signal.SIGKILL)


def _last_words(exit_code: int | None) -> str:
    if exit_code is None:
        return "it closed its line"
    if exit_code == -signal.SIGKILL:
        return "it was killed (signal 9), as the system does when memory runs out"
    if exit_code < 0:
        return f"it was ended by signal {-exit_code} ({signal.Signals(-exit_code).name})"
    return f"it left with exit code {exit_code}"


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Ctrl-C while a worker starts is for us, and must not end it with a traceback."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Variables that a process started now inherits."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
