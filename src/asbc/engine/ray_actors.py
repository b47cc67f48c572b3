"""Workers that are actors of a Ray cluster: `pip install 'asbc[ray]'`."""

import os
import pickle
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from asbc.engine.pool import (
    ONE_THREAD,
    Died,
    Engine,
    Function,
    Pool,
    Reply,
    Setup,
    Worker,
    Workers,
    attempt,
    one_thread,
    packed,
)
from asbc.errors import InputError


@dataclass(frozen=True, kw_only=True)
class RayEngine(Engine):
    """Actors of a Ray cluster, one CPU each. Every machine of it needs asbc installed.

    Args:
        address: of a running cluster, e.g. "auto" or "ray://HOST:10001"; None: the one that
            RAY_ADDRESS or this machine has running, else one that is started here and ended again.

    See `Engine` for the others; None workers are as many as the cluster has CPUs.
    """

    address: str | None = None

    def pool(self, setup: Setup | None = None, most: int | None = None) -> Pool:
        """See `Engine`."""
        try:
            import ray
        except ImportError as error:
            raise InputError("engine=ray: Ray is missing; pip install 'asbc[ray]'") from error
        ours = not ray.is_initialized()
        if ours:
            self._connect(ray)
        workers = self.workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
        return RayWorkers(setup, min(workers, most or workers), self, ours)

    def _connect(self, ray: Any) -> None:
        settings: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to anybody
        try:
            ray.init(address=self.address, **settings)
        except (ConnectionError, RuntimeError, ValueError) as error:
            what = str(error).strip().splitlines()[0]
            raise InputError(
                f"engine.address={self.address}: no Ray cluster answers ({what}); start one with "
                "`ray start --head`, or leave the address out"
            ) from error


class RayWorkers(Workers):
    """See `Workers`; `ours` says whether the connection is ended with them."""

    def __init__(self, setup: Setup | None, limit: int, engine: Engine, ours: bool) -> None:
        super().__init__(limit, engine)
        self._setup = setup
        self._ours = ours

    def start(self) -> Worker:
        """See `Workers`."""
        return RayActor(self._setup)

    def wait(self, workers: Sequence[Worker], timeout: float | None) -> list[Worker]:
        """See `Workers`."""
        import ray

        by_reply = {w.reply: w for w in workers if isinstance(w, RayActor)}
        heard, _ = ray.wait(list(by_reply), num_returns=1, timeout=timeout)
        return [by_reply[reply] for reply in heard]

    def close(self) -> None:
        """End all workers, and the connection if it was ours."""
        import ray

        super().close()
        if self._ours:
            ray.shutdown()


class RayActor(Worker):
    """One actor, and the promise of its next reply."""

    def __init__(self, setup: Setup | None) -> None:
        import ray

        made: Any = ray.remote(Server).options(
            num_cpus=1, max_restarts=0, runtime_env={"env_vars": ONE_THREAD}
        )
        self.actor: Any = made.remote()
        self.reply = self.actor.prepare.remote(ray.cloudpickle.dumps(setup))

    def give(self, function: Function, value: Any) -> None:
        """See `Worker`."""
        import ray

        self.reply = self.actor.work.remote(ray.cloudpickle.dumps((function, value)))

    def take(self) -> Reply:
        """See `Worker`."""
        import ray

        try:
            return pickle.loads(ray.get(self.reply))
        except ray.exceptions.RayError as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            return Died(" ".join(lines[:1]) or type(error).__name__)

    def kill(self) -> None:
        """See `Worker`."""
        import ray

        with suppress(ray.exceptions.RayError):
            ray.kill(self.actor)


class Server:
    """What an actor does; see `asbc.engine.local.serve`."""

    def __init__(self) -> None:
        self.context: Any = None

    def prepare(self, setup: bytes) -> bytes:
        """Set up."""

        def build() -> None:
            made: Callable[[], Any] | None = pickle.loads(setup)
            self.context = made() if made else None

        return packed(attempt(build))

    def work(self, content: bytes) -> bytes:
        """One piece."""

        def call() -> Any:
            function, value = pickle.loads(content)
            one_thread()
            return function(self.context, value)

        return packed(attempt(call))
