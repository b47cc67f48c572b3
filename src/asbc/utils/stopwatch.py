"""Seconds spent per named stage."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


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
