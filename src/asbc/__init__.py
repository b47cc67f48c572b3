"""Active simulation-based calibration of stochastic car-following models.

    import asbc

    run = asbc.train("pairs.csv", experiment="robust_stream", residual="matern")
    fit = run.calibrate("drivers.csv")
    fit.summary, fit.to_sumo("drivers.add.xml")

Names are imported when they are used: `import asbc` itself is light.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asbc.calibration.fit import Fit, calibrate
    from asbc.data.pairs import Pairs
    from asbc.data.pairs_file import read_pairs
    from asbc.errors import InputError
    from asbc.run import Run
    from asbc.simulator import Prior, Simulator
    from asbc.training.train import train

    __version__: str

_HOMES = {
    "Fit": "asbc.calibration.fit",
    "InputError": "asbc.errors",
    "Pairs": "asbc.data.pairs",
    "Prior": "asbc.simulator",
    "Run": "asbc.run",
    "Simulator": "asbc.simulator",
    "calibrate": "asbc.calibration.fit",
    "read_pairs": "asbc.data.pairs_file",
    "train": "asbc.training.train",
}

__all__ = [
    "Fit",
    "InputError",
    "Pairs",
    "Prior",
    "Run",
    "Simulator",
    "__version__",
    "calibrate",
    "read_pairs",
    "train",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("asbc")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'asbc' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
