"""Input checks whose messages name the argument and the first offending index."""

import torch
from torch import Tensor


class InputError(ValueError):
    """Something the user handed in cannot be used; the message says what and how to mend it."""


def require_shape(name: str, value: Tensor, expected: tuple[int | None, ...]) -> None:
    """Raise unless `value` has the expected shape; None matches any size.

    Example:
        >>> require_shape("gap", torch.zeros(3), (3, None))
        Traceback (most recent call last):
        ...
        asbc.utils.checks.InputError: gap has shape (3,), expected (3, *)
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
        asbc.utils.checks.InputError: gap[1] is -1, expected positive (metres)
    """
    if bool(valid.all()):
        return
    index = tuple(int(i) for i in torch.nonzero(~valid)[0])
    place = ", ".join(map(str, index))
    raise InputError(f"{name}[{place}] is {value[index].item():.6g}, expected {expected}")


def require_finite(name: str, value: Tensor) -> None:
    """Raise naming the first NaN or infinite entry."""
    require(name, value, torch.isfinite(value), "a finite number")
