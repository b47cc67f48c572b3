"""Drivers as SUMO vehicle types: a `vTypeDistribution` with one vType per driver.

SUMO's IDM knows v0, s0, T, a_max and b. It has no residual acceleration: sigma and ell are kept as
comments beside each type, and SUMO drives the deterministic part only. Drivers of a model that
SUMO itself simulated (`model=sumo_krauss` and others) get the attributes they were simulated with.
"""

import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from asbc.errors import InputError
from asbc.simulator import Simulator
from asbc.simulator.sumo_models import SumoModel, number
from asbc.utils.checks import require_finite, require_shape

SUMO_FILE = "drivers.add.xml"
SCHEMA = "http://sumo.dlr.de/xsd/additional_file.xsd"
SCHEMA_INSTANCE = "http://www.w3.org/2001/XMLSchema-instance"
# SUMO's attribute for each parameter of the IDM.
ATTRIBUTES = {"v0": "maxSpeed", "s0": "minGap", "T": "tau", "a_max": "accel", "b": "decel"}
# v_des = min(maxSpeed, lane limit * speedFactor): with this factor no realistic limit binds.
UNLIMITED = 10.0


@dataclass(frozen=True, kw_only=True)
class SumoTypes:
    """What every exported type has in common.

    Args:
        distribution: id that routes and flows refer to, e.g. `<flow type="asbc_drivers" .../>`.
        length: vehicle length (m).
        vehicle_class: SUMO's vClass.
        emergency_decel: hardest braking (m/s^2), the simulator's lower acceleration bound.
        delta: the IDM's acceleration exponent.
        speed_limit: limit (m/s) of the road where the drivers were recorded. Their desired speed
            then scales with the limits of the simulated network; None: no limit binds them.
        step_length: time step (s) of the data, which SUMO should run with.
        model: SUMO's own model that the drivers were calibrated for; None: its IDM.

    Example:
        >>> SumoTypes(length=-1.0)
        Traceback (most recent call last):
        ...
        asbc.errors.InputError: sumo.length=-1.0; expected a positive number
    """

    distribution: str = "asbc_drivers"
    length: float = 5.0
    vehicle_class: str = "passenger"
    emergency_decel: float = 9.0
    delta: float = 4.0
    speed_limit: float | None = None
    step_length: float = 0.2
    model: SumoModel | None = None

    def __post_init__(self) -> None:
        numbers = {"length": self.length, "emergency_decel": self.emergency_decel}
        numbers |= {"delta": self.delta, "step_length": self.step_length}
        if self.speed_limit is not None:
            numbers["speed_limit"] = self.speed_limit
        for name, value in numbers.items():
            if not value > 0:
                raise InputError(f"sumo.{name}={value}; expected a positive number")

    @property
    def parameters(self) -> tuple[str, ...]:
        """What a driver must have to become a type."""
        return tuple(ATTRIBUTES) if self.model is None else self.model.parameters


def write_vtypes(
    path: Path, theta: Tensor, names: Sequence[str], settings: SumoTypes | None = None
) -> None:
    """Write drivers `theta` (n, dim) as an additional file for `sumo --additional-files`."""
    settings = settings or SumoTypes()
    require_shape("theta", theta, (None, len(names)))
    require_finite("theta", theta)
    missing = [name for name in settings.parameters if name not in names]
    if missing or len(theta) == 0:
        problem = f"no parameter {', '.join(missing)}" if missing else "no driver"
        needs = ", ".join(settings.parameters)
        kind = "an IDM" if settings.model is None else settings.model.name
        raise InputError(f"SUMO export: {problem}; it needs drivers of {kind} with {needs}")
    root = ET.Element(
        "additional",
        {"xmlns:xsi": SCHEMA_INSTANCE, "xsi:noNamespaceSchemaLocation": SCHEMA},
    )
    root.append(ET.Comment(_header(names, settings)))
    distribution = ET.SubElement(root, "vTypeDistribution", id=settings.distribution)
    digits = len(str(len(theta) - 1))
    for index, row in enumerate(theta.tolist()):
        driver = dict(zip(names, row, strict=True))
        others = {k: v for k, v in driver.items() if k not in settings.parameters}
        residual = [f"{k}={number(v)}" for k, v in others.items()]
        if residual:
            distribution.append(ET.Comment(f" residual, not in SUMO: {' '.join(residual)} "))
        name = f"{settings.distribution}.{index:0{digits}d}"
        ET.SubElement(distribution, "vType", _attributes(name, driver, settings))
    tree = ET.ElementTree(root)
    ET.indent(tree, "    ")
    tree.write(path, encoding="utf-8", xml_declaration=True)


def _attributes(name: str, driver: dict[str, float], settings: SumoTypes) -> dict[str, str]:
    limit = settings.speed_limit
    factor = UNLIMITED if limit is None else driver["v0"] / limit
    return {
        **{"id": name, "vClass": settings.vehicle_class, "length": number(settings.length)},
        **_own_attributes(driver, settings),
        "speedFactor": number(factor),
        "speedDev": "0",  # the heterogeneity is in the types already
    }


def _own_attributes(driver: dict[str, float], settings: SumoTypes) -> dict[str, str]:
    if settings.model is not None:
        return settings.model.vtype([driver[p] for p in settings.model.parameters])
    return {
        "carFollowModel": "IDM",
        **{attribute: number(driver[p]) for p, attribute in ATTRIBUTES.items()},
        "emergencyDecel": number(max(settings.emergency_decel, driver["b"])),
        "delta": number(settings.delta),
    }


def _header(names: Sequence[str], settings: SumoTypes) -> str:
    residual = [name for name in names if name not in settings.parameters]
    lost = f" Without an equivalent in SUMO, kept as comments: {', '.join(residual)}."
    return (
        " Drivers drawn jointly from calibrated posteriors, one vType each."
        f"{lost if residual else ''} Run SUMO with step-length {settings.step_length:g}."
        " Change types in this file, not at run time: SUMO computes sqrt(accel * decel) once. "
    )


def sumo_types(simulator: Simulator, **settings: object) -> SumoTypes:
    """Settings of the export with what the simulator fixes: step, braking bound, exponent."""
    fixed = {
        "step_length": simulator.dt,
        "emergency_decel": -simulator.acceleration_bounds[0],
        "delta": getattr(simulator.law, "delta", 4.0),
        "model": simulator.law if isinstance(simulator.law, SumoModel) else None,
    }
    return SumoTypes(**fixed, **settings)  # type: ignore[arg-type]
