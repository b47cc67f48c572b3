"""Schedules: one number per round, round 0 (the warm-up) first."""

from collections.abc import Sequence
from dataclasses import dataclass

from asbc.utils.checks import InputError


@dataclass(frozen=True)
class Constant:
    """The same number in every round, for loops whose length is not known ahead."""

    value: float

    def __getitem__(self, round: int) -> float:
        return self.value


Schedule = Sequence[float] | Constant


def check_schedule(field: str, schedule: Sequence[float], rounds: int) -> None:
    """Raise, naming `field`, unless the schedule has a share in [0, 1] for rounds 0 .. rounds.

    Example:
        >>> check_schedule("acquisition.lambda_schedule", [1.0, 0.5], rounds=2)
        Traceback (most recent call last):
        ...
        asbc.utils.checks.InputError: acquisition.lambda_schedule has 2 entries, needs 3 or more
    """
    if len(schedule) < rounds + 1:
        raise InputError(f"{field} has {len(schedule)} entries, needs {rounds + 1} or more")
    for index, value in enumerate(schedule):
        if not 0 <= value <= 1:
            raise InputError(f"{field}[{index}] is {value}, expected a share between 0 and 1")
