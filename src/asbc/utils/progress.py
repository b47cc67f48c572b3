"""One progress bar for all long work; silent when the output is not a terminal."""

import sys
from collections.abc import Iterable
from typing import TypeVar

from tqdm.auto import tqdm

Item = TypeVar("Item")


def progress(items: Iterable[Item], description: str, total: int | None = None) -> Iterable[Item]:
    """Iterate over `items` under a progress bar on standard error."""
    return tqdm(
        items,
        desc=description,
        total=total,
        file=sys.stderr,
        dynamic_ncols=True,
        disable=not sys.stderr.isatty(),
    )
