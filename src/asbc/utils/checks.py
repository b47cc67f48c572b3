"""Input checks whose messages name the argument and the first offending index."""

import math

import torch
from torch import Tensor

from asbc.errors import InputError


def require_shape(name: str, value: Tensor, expected: tuple[int | None, ...]) -> None:
    """Raise unless `value` has the expected shape; None matches any size.

    Example:
        >>> require_shape("gap", torch.zeros(3), (3, None))
        Traceback (most recent call last):
        ...
        asbc.errors.InputError: gap has shape (3,), expected (3, *)
    """
    matches = value.ndim == len(expected) and all(
        want is None or have == want for have, want in zip(value.shape, expected, strict=True)
    )
    if not matches:
        want_text = ", ".join("*" if size is None else str(size) for size in expected)
        raise InputError(f"{name} has shape {tuple(value.shape)}, expected ({want_text})")


def require(name: str, value: Tensor, valid: Tensor, expected: str) -> None:
    """Raise naming the first index where `valid` is false; `expected` says what was wanted.

    Example:
        >>> gap = torch.tensor([3.0, -1.0])
        >>> require("gap", gap, gap > 0, "positive (metres)")
        Traceback (most recent call last):
        ...
        asbc.errors.InputError: gap[1] is -1, expected positive (metres)
    """
    if bool(valid.all()):
        return
    index = tuple(int(i) for i in torch.nonzero(~valid)[0])
    place = ", ".join(map(str, index))
    raise InputError(f"{name}[{place}] is {value[index].item():.6g}, expected {expected}")


def require_finite(name: str, value: Tensor) -> None:
    """Raise naming the first NaN or infinite entry."""
    require(name, value, torch.isfinite(value), "a finite number")


def check_integer(field: str, value: object, minimum: int) -> None:
    """Raise unless `value` is a whole number of at least `minimum`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise InputError(f"{field}={value}; expected a whole number of at least {minimum}")


def check_number(
    field: str, value: object, minimum: float = -math.inf, above: float = -math.inf
) -> None:
    """Raise unless `value` is a finite number >= `minimum` and > `above`."""
    number = math.nan
    if isinstance(value, int | float) and not isinstance(value, bool):
        number = float(value)
    if not (math.isfinite(number) and number >= minimum and number > above):
        bound = f"above {above:g}" if above > -math.inf else f"of at least {minimum:g}"
        raise InputError(f"{field}={value}; expected a number {bound}")
