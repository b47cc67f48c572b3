"""One progress bar for all long work, and seconds spent per named stage."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from tqdm.auto import tqdm

Item = TypeVar("Item")


def progress(items: Iterable[Item], description: str, total: int | None = None) -> Iterable[Item]:
    """Iterate over `items` under a progress bar on standard error."""
    return tqdm(items, desc=description, total=total, **_settings())


def bar(description: str, total: int | None = None) -> tqdm:
    """A progress bar on standard error for whoever calls its `update` as things get done."""
    return tqdm(desc=description, total=total, **_settings())


def _settings() -> dict[str, Any]:
    return {"file": sys.stderr, "dynamic_ncols": True, "disable": not sys.stderr.isatty()}


class Stopwatch:
    """Adds up seconds by stage name.

    Args:
        clock: wall-clock time, or `time.process_time` for that of the CPU.

    Example:
        >>> watch = Stopwatch()
        >>> with watch("simulate"):
        ...     pass
        >>> list(watch.seconds)
        ['simulate']
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        """Time the enclosed block."""
        start = self._clock()
        try:
            yield
        finally:
            elapsed = self._clock() - start
            self.seconds[stage] = self.seconds.get(stage, 0.0) + elapsed
