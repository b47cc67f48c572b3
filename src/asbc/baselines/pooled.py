"""Pooled B-IDM and MA-IDM: one posterior for all drivers, after Zhang & Sun (2024)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from asbc.baselines.method import Fitted, Task, for_every_pair
from asbc.baselines.point_fit import fields_of
from asbc.errors import InputError
from asbc.exact import diagnostics
from asbc.exact.diagnostics import NutsSettings, require_extra, take_draws
from asbc.simulator import Prior, Simulator
from asbc.simulator.black_box import require_likelihood
from asbc.simulator.matern import MaternResidual
from asbc.simulator.residuals import GaussianResidual
from asbc.simulator.squared_exponential import SquaredExponentialResidual
from asbc.utils.checks import check_number
from asbc.utils.random import key

PRIORS = ("asbc", "reference")
KERNELS = ("squared_exponential", "matern52")


@dataclass(frozen=True)
class BIDM:
    """Pooled B-IDM: independent Gaussian acceleration noise, one theta for all drivers.

    Args:
        prior: "asbc" for the prior ASBC has, "reference" for the published one.
        nuts: sampler settings.
    """

    prior: str = "asbc"
    nuts: NutsSettings = field(default_factory=NutsSettings)

    def __post_init__(self) -> None:
        _require_choice("prior", self.prior, PRIORS)

    def label(self, residual: str) -> str:
        """How tables name the method; its residual model is part of it."""
        return "Pooled B-IDM" + _prior_note(self.prior)

    def fit(self, task: Task) -> Fitted:
        """Sample the posterior given all known pairs."""
        require_likelihood(task.simulator, "baseline=b_idm")
        require_extra()
        from asbc.baselines import pooled_models

        if not isinstance(task.simulator.residual, GaussianResidual):
            raise InputError("baseline=b_idm has independent residuals: use residual=gaussian")
        model, statistics = pooled_models.b_idm(task, self.prior)
        return _sample(task, task.simulator, model, statistics, self.nuts)


@dataclass(frozen=True)
class MAIDM:
    """Pooled MA-IDM: residuals correlated within slices, one theta for all drivers.

    Args:
        kernel: "squared_exponential" (with white noise, as published) or "matern52".
        prior: as for `BIDM`; sigma and ell have ASBC-Matern's prior.
        slice_seconds: length of the slices; they do not overlap.
        white: prior of the white noise's standard deviation, which ASBC does not have.
        nuts: sampler settings.
    """

    kernel: str = "squared_exponential"
    prior: str = "asbc"
    slice_seconds: float = 4.0
    white: Mapping[str, Any] = field(
        default_factory=lambda: {
            "unit": "m/s^2",
            "centre": 0.03,
            "log_scale": 1.0,
            "low": 1e-4,
            "high": 1.0,
        }
    )
    nuts: NutsSettings = field(default_factory=NutsSettings)

    def __post_init__(self) -> None:
        _require_choice("prior", self.prior, PRIORS)
        _require_choice("kernel", self.kernel, KERNELS)
        check_number("baseline.slice_seconds", self.slice_seconds, above=0)

    def label(self, residual: str) -> str:
        """How tables name the method; its residual model is part of it."""
        kernel = "" if self.kernel == "squared_exponential" else ", Matérn kernel"
        return f"Pooled MA-IDM{kernel}" + _prior_note(self.prior)

    def fit(self, task: Task) -> Fitted:
        """Sample the posterior given all known pairs."""
        require_likelihood(task.simulator, "baseline=ma_idm")
        require_extra()
        from asbc.baselines import pooled_models

        simulator = self._simulator(task.simulator)
        model, statistics = pooled_models.ma_idm(task, simulator, self.prior, self.slice_seconds)
        return _sample(task, simulator, model, statistics, self.nuts)

    def _simulator(self, simulator: Simulator) -> Simulator:
        """The simulator that predicts with this kernel."""
        if not isinstance(simulator.residual, MaternResidual):
            raise InputError("baseline=ma_idm has correlated residuals: use residual=matern")
        if self.kernel == "matern52":
            return simulator
        fields = {m.name: fields_of(m) for m in simulator.prior.marginals}
        residual = {name: fields.pop(name) for name in MaternResidual.parameters}
        return Simulator(
            simulator.law,
            SquaredExponentialResidual(),
            Prior(fields, residual | {"white": dict(self.white)}),
            simulator.kinematics,
            simulator.dt,
            simulator.acceleration_bounds,
        )


def _sample(
    task: Task, simulator: Simulator, model: Any, statistics: Any, settings: NutsSettings
) -> Fitted:
    from asbc.exact import nuts

    chains = nuts.sample(model, settings, key(task.seed, "nuts", "pooled"), statistics)
    data = diagnostics.pooled_data(chains, simulator.parameter_names)
    verdict = diagnostics.check(data, settings)
    theta = take_draws(chains.sites["theta"], task.samples)
    return Fitted(
        simulator,
        for_every_pair(theta, task.test),
        task.test,
        {"known_pairs": len(task.known)},
        data,
        verdict,
    )


def _require_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InputError(f"baseline.{name}={value}; expected one of {', '.join(choices)}")


def _prior_note(prior: str) -> str:
    return "" if prior == "asbc" else ", published prior"
