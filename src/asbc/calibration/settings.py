"""How to calibrate: one frozen record, checked when it is made."""

from dataclasses import dataclass

from asbc.utils.checks import InputError

ON_ERROR = ("stop", "skip")


@dataclass(frozen=True, kw_only=True)
class CalibrationSettings:
    """Sizes and seed of a calibration.

    Args:
        samples: posterior draws written per driver.
        seed: all randomness; a driver's draws depend on it and on the driver's id only.
        chunk: drivers calibrated and written at once: bounds memory and what a kill can lose.
        on_error: what a driver that cannot be calibrated does: `stop` the run with its name, or
            `skip` and be reported at the end.
        predictive_draws: drives behind the recorded leader that are simulated per driver and
            stored as posterior predictive; 0 stores none.
        simulated_drivers: simulations that say which contexts are unlike the training's; 0 skips
            the flag.
    """

    samples: int = 500
    seed: int = 0
    chunk: int = 256
    on_error: str = "stop"
    predictive_draws: int = 0
    simulated_drivers: int = 1000

    def __post_init__(self) -> None:
        least = {"samples": 2, "chunk": 1, "predictive_draws": 0, "simulated_drivers": 0}
        for name, smallest in least.items():
            value = getattr(self, name)
            if value < smallest:
                raise InputError(f"calibration.{name}={value}; expected at least {smallest}")
        if self.predictive_draws > self.samples:
            raise InputError(
                f"calibration.predictive_draws={self.predictive_draws} is more than "
                f"calibration.samples={self.samples}"
            )
        if self.on_error not in ON_ERROR:
            raise InputError(f"on_error={self.on_error}; expected stop or skip")
