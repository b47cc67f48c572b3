"""How to run NUTS, and when to believe it."""

from dataclasses import dataclass

from asbc.utils.checks import InputError


@dataclass(frozen=True)
class NutsSettings:
    """Settings of the No-U-Turn sampler.

    Args:
        chains: independent chains, run side by side.
        warmup: adaptation steps of each chain, thrown away.
        draws: draws kept of each chain.
        target_accept: acceptance probability the step size is adapted to.
        max_tree_depth: log2 of the most leapfrog steps per draw.
        max_r_hat: largest rank-normalised r-hat of a converged run.
        min_ess: smallest bulk effective sample size of a converged run.
    """

    chains: int = 4
    warmup: int = 1000
    draws: int = 1000
    target_accept: float = 0.9
    max_tree_depth: int = 10
    max_r_hat: float = 1.01
    min_ess: float = 400.0

    def __post_init__(self) -> None:
        smallest = {"chains": 2, "warmup": 1, "draws": 4, "max_tree_depth": 1}
        for name, least in smallest.items():
            if getattr(self, name) < least:
                raise InputError(f"nuts.{name}={getattr(self, name)}; expected at least {least}")
        if not 0 < self.target_accept < 1:
            raise InputError(
                f"nuts.target_accept={self.target_accept}; expected a number in (0, 1)"
            )
