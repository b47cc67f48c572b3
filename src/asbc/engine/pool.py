"""What an engine promises, and the one scheduler behind all of them.

- A piece is a key (text, for messages) and a value. Its result may depend on nothing else, so
  that it is the same for any engine, number of workers and order: draw random numbers from
  `asbc.utils.random` by what the piece is. Every worker computes on one thread.
- What is expensive to have (a loaded model, a running simulator) is built once in each worker by
  `setup`, and handed to every call as its first argument.
- A worker that dies, is killed for memory or hangs past the time limit is replaced, and its piece
  is done again. A piece whose workers died `attempts` times is named in an InputError at the end,
  when all other pieces have been done.
- An exception of a piece ends the map: no further piece is begun, those under way are finished
  and yielded, and of all exceptions that of the first piece is raised, whoever was fastest.
- After an error or Ctrl-C nothing is left running; neither if the main process is killed.
"""

import pickle
import sys
import time
import traceback
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from asbc.errors import InputError
from asbc.utils.progress import bar

# Called with what `setup` returned (None without one) and the piece's value.
Function = Callable[[Any, Any], Any]
Setup = Callable[[], Any]
# Libraries read these once, when they are loaded.
ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1"
)


@dataclass(frozen=True, kw_only=True)
class Engine(ABC):
    """Where pieces of work are done; a frozen set of values that a config file holds.

    Args:
        workers: how many pieces are done at a time; None: as many as there are cores.
        attempts: workers that a piece may wear out before it is given up.
        time_limit: seconds that a piece may take before its worker counts as hung; None: any.

    Example:
        >>> import math
        >>> from asbc.engine import LocalEngine
        >>> def scaled(factor, value):  # the worker's own factor, and the piece's value
        ...     return factor * value
        >>> with LocalEngine(workers=1).pool(lambda: 10) as pool:
        ...     pool.gather(scaled, [("a", 1), ("b", 2)])
        [10, 20]

        With more workers, function and setup must be importable by name, as `math.pow` is:

        >>> from functools import partial
        >>> with LocalEngine(workers=2).pool(partial(float, "2")) as pool:
        ...     sorted(pool.map(math.pow, [("2^3", 3), ("2^4", 4)]))
        [('2^3', 8.0), ('2^4', 16.0)]
    """

    workers: int | None = None
    attempts: int = 3
    time_limit: float | None = 3600.0

    def __post_init__(self) -> None:
        # Not by asbc.utils.checks, which loads torch: a worker may have no use for it.
        for name, least in (("workers", 1), ("attempts", 1)):
            value = getattr(self, name)
            if value is None and name == "workers":
                continue
            if type(value) is not int or value < least:
                raise InputError(f"engine.{name}={value}; expected a whole number from {least} on")
        if self.time_limit is not None and not self.time_limit > 0:
            raise InputError(f"engine.time_limit={self.time_limit}; expected seconds above 0")

    @abstractmethod
    def pool(self, setup: Setup | None = None, most: int | None = None) -> "Pool":
        """Workers, started when there is work; a context manager that ends them.

        Args:
            setup: builds what a worker keeps; importable by name, or a `functools.partial` of
                something that is.
            most: pieces that there will be at the most at a time, if that is known.
        """


class Pool(ABC):
    """Workers that live until `close`; `map` may be called many times, one at a time.

    Attributes:
        worker_seconds: CPU time that other processes have spent on finished pieces so far.
    """

    worker_seconds = 0.0

    @abstractmethod
    def map(
        self,
        function: Function,
        pieces: Iterable[tuple[str, Any]],
        description: str = "pieces",
        total: int | None = None,
    ) -> Iterator[tuple[str, Any]]:
        """Key and result of each piece, in the order in which they are finished.

        Args:
            function: called as function(what setup returned, value).
            pieces: key and value of each; taken one by one as workers become free.
            description: of the progress bar.
            total: number of pieces, for the progress bar; None: the length, if there is one.
        """

    def gather(
        self,
        function: Function,
        pieces: Sequence[tuple[str, Any]],
        description: str = "pieces",
    ) -> list[Any]:
        """The results in the order of the pieces, whose keys must differ."""
        found = dict(self.map(function, pieces, description))
        return [found[key] for key, _ in pieces]

    @abstractmethod
    def close(self) -> None:
        """End all workers."""

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class OwnProcess(Pool):
    """One worker: this process. What kills it kills all, and nothing limits its time."""

    def __init__(self, setup: Setup | None) -> None:
        self._setup = setup
        self._context: Any = None
        self._ready = False

    def map(
        self,
        function: Function,
        pieces: Iterable[tuple[str, Any]],
        description: str = "pieces",
        total: int | None = None,
    ) -> Iterator[tuple[str, Any]]:
        """See `Pool`."""
        threads = one_thread()
        try:
            with bar(description, total if total is not None else length(pieces)) as done:
                for key, value in pieces:
                    if not self._ready:
                        self._context = self._setup() if self._setup else None
                        self._ready = True
                        threads = threads or one_thread()
                    result = function(self._context, value)
                    done.update()
                    yield key, result
        finally:
            if threads:
                sys.modules["torch"].set_num_threads(threads)

    def close(self) -> None:
        """Forget what was set up."""
        self._context, self._ready = None, False


class Done(NamedTuple):
    """A worker's result, and the CPU seconds that it took."""

    result: Any
    seconds: float


class Raised(NamedTuple):
    """An exception in a worker, and its traceback there."""

    error: BaseException
    trace: str


class Died(NamedTuple):
    """What became of a worker that is no more."""

    why: str


Reply = Done | Raised | Died


class WorkerTraceback(Exception):
    """The cause of an exception that came from a worker."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


@dataclass
class Task:
    """A piece on its way."""

    index: int
    key: str
    value: Any
    deaths: int = 0


class Worker(ABC):
    """One worker process, wherever it is. It replies once to having been started, with a
    Done when it is ready, and once to each piece."""

    task: Task  # what it works on, or will when it is ready
    ready = False
    since = 0.0  # when it was started, or got its piece

    @abstractmethod
    def give(self, function: Function, value: Any) -> None:
        """Begin a piece."""

    @abstractmethod
    def take(self) -> Reply:
        """The reply that `wait` announced."""

    @abstractmethod
    def kill(self) -> None:
        """End it, whatever it is doing."""


class Workers(Pool):
    """Several workers, each with one piece at a time.

    Args:
        limit: number of workers.
        engine: how often and how long pieces are tried.
    """

    def __init__(self, limit: int, engine: Engine) -> None:
        self._limit = limit
        self._engine = engine
        self._busy: list[Worker] = []
        self._idle: list[Worker] = []
        self._false_starts = 0

    @abstractmethod
    def start(self) -> Worker:
        """A new worker."""

    @abstractmethod
    def wait(self, workers: Sequence[Worker], timeout: float | None) -> list[Worker]:
        """Those that have replied or died, when there are any or the time is over."""

    def map(
        self,
        function: Function,
        pieces: Iterable[tuple[str, Any]],
        description: str = "pieces",
        total: int | None = None,
    ) -> Iterator[tuple[str, Any]]:
        """See `Pool`."""
        waiting: deque[Task] = deque()  # pieces to do again
        source = (Task(i, key, value) for i, (key, value) in enumerate(pieces))
        errors: dict[int, Raised] = {}
        given_up: dict[str, str] = {}
        try:
            with bar(description, total if total is not None else length(pieces)) as done:
                while True:
                    self._hand_out(function, waiting, iter(()) if errors else source)
                    if not self._busy:
                        break
                    for worker, reply in self._replies():
                        task = worker.task
                        if isinstance(reply, Died):
                            self._again(worker, reply, waiting, given_up)
                        elif not worker.ready:
                            self._begin(worker, reply, function)
                        elif isinstance(reply, Raised):
                            self._free(worker)
                            errors[task.index] = reply
                        else:
                            self._free(worker)
                            self._hand_out(function, waiting, iter(()) if errors else source)
                            done.update()
                            self.worker_seconds += reply.seconds
                            yield task.key, reply.result
        finally:
            for worker in list(self._busy):
                self._drop(worker)
        if errors:
            first = errors[min(errors)]
            raise first.error from WorkerTraceback(first.trace)
        if given_up:
            raise InputError(self._explain(given_up))

    def close(self) -> None:
        """End all workers."""
        for worker in (*self._busy, *self._idle):
            worker.kill()
        self._busy, self._idle = [], []

    def _hand_out(self, function: Function, waiting: deque[Task], source: Iterator[Task]) -> None:
        """Give every free worker a piece; start workers while there are pieces for them."""
        while len(self._busy) < self._limit:
            task = waiting.popleft() if waiting else next(source, None)
            if task is None:
                return
            worker = self._idle.pop() if self._idle else self.start()
            worker.task, worker.since = task, time.monotonic()
            self._busy.append(worker)
            if worker.ready:
                worker.give(function, task.value)

    def _begin(self, worker: Worker, reply: Reply, function: Function) -> None:
        """A worker that has been set up gets its first piece."""
        if isinstance(reply, Raised):
            raise reply.error from WorkerTraceback(reply.trace)
        worker.ready, worker.since = True, time.monotonic()
        self._false_starts = 0
        worker.give(function, worker.task.value)

    def _replies(self) -> Iterator[tuple[Worker, Reply]]:
        """Workers that have something to say, or did not in time."""
        limit = self._engine.time_limit
        timeout = None
        if limit is not None:
            first = min(worker.since for worker in self._busy)
            timeout = max(0.0, first + limit - time.monotonic()) + 0.01
        heard = self.wait(self._busy, timeout)
        for worker in heard:
            yield worker, worker.take()
        if heard or limit is None:
            return
        for worker in [w for w in self._busy if time.monotonic() - w.since > limit]:
            yield worker, Died(f"it took longer than engine.time_limit={limit:g} s")

    def _again(
        self, worker: Worker, reply: Died, waiting: deque[Task], given_up: dict[str, str]
    ) -> None:
        """Replace a dead worker; its piece waits for another one, or is given up."""
        self._drop(worker)
        task = worker.task
        if not worker.ready:
            self._false_starts += 1
            if self._false_starts >= self._engine.attempts:
                raise InputError(
                    f"engine: workers die before they begin; the last one: {reply.why}"
                )
            waiting.append(task)
            return
        task.deaths += 1
        if task.deaths < self._engine.attempts:
            waiting.append(task)
        else:
            given_up[task.key] = reply.why

    def _free(self, worker: Worker) -> None:
        self._busy.remove(worker)
        self._idle.append(worker)

    def _drop(self, worker: Worker) -> None:
        self._busy.remove(worker)
        worker.kill()

    def _explain(self, given_up: dict[str, str]) -> str:
        key, why = next(iter(given_up.items()))
        more = f" (and {len(given_up) - 1} more pieces)" if len(given_up) > 1 else ""
        return (
            f"{key}{more}: {self._engine.attempts} workers died on it, the last because {why}; "
            "all other pieces are done; give it more memory (fewer engine.workers) or time "
            "(engine.time_limit), or try it alone with engine.workers=1"
        )


def attempt(function: Callable[..., Any], *arguments: Any) -> Reply:
    """What came of a call in a worker."""
    start = time.process_time()
    try:
        result = function(*arguments)
        return Done(result, time.process_time() - start)
    except Exception as error:
        return Raised(error, traceback.format_exc())


def packed(reply: Reply) -> bytes:
    """A reply as bytes; what cannot be sent becomes an exception that can.

    By plain pickle: torch would otherwise share memory with a worker that may be gone by then.
    """
    try:
        content = pickle.dumps(reply, protocol=5)
        if isinstance(reply, Raised):
            pickle.loads(content)  # exceptions with arguments of their own may fail here
        return content
    except Exception as error:
        text = reply.trace if isinstance(reply, Raised) else f"its result: {error}"
        return pickle.dumps(Raised(RuntimeError(text.strip().splitlines()[-1]), text), protocol=5)


def one_thread() -> int:
    """Let torch compute on one thread from now on; the number it had, 0 if it is not loaded."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "set_num_threads"):
        return 0
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    return threads


def length(pieces: Iterable[Any]) -> int | None:
    """How many there are, where that is known."""
    return len(pieces) if isinstance(pieces, Sequence) else None
