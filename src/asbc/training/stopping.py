"""When to stop: within a round over epochs, and over rounds."""

import math
from dataclasses import asdict, dataclass


@dataclass
class Patience:
    """Counts how long a loss has not improved.

    Example:
        >>> rule = Patience(patience=2)
        >>> [rule.update(loss) for loss in (3.0, 2.0, 2.0, 2.5)]
        [True, True, False, False]
        >>> rule.exhausted, rule.best, rule.best_index
        (True, 2.0, 1)
    """

    patience: int
    min_delta: float = 0.0
    best: float = math.inf
    best_index: int = -1
    updates: int = 0

    def update(self, loss: float) -> bool:
        """Note the next loss; True if it is lower than the best by more than `min_delta`."""
        improved = loss < self.best - self.min_delta  # never for NaN
        if improved:
            self.best, self.best_index = loss, self.updates
        self.updates += 1
        return improved

    @property
    def exhausted(self) -> bool:
        """Whether the last `patience` losses brought no improvement."""
        return self.updates - 1 - self.best_index >= self.patience

    def state_dict(self) -> dict[str, float]:
        """Plain values."""
        return asdict(self)
