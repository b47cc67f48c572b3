"""What a browser must know of a model: its network, simulator and card as plain values.

Weights are kept in half precision where that changes no number, as in shipped models; the page
computes what Python computes. What a page cannot do is refused here, in one line.
"""

import base64
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from nflows.transforms.autoregressive import (
    MaskedAffineAutoregressiveTransform,
    MaskedPiecewiseRationalQuadraticAutoregressiveTransform,
)
from nflows.transforms.made import MaskedLinear
from nflows.transforms.permutations import Permutation

from asbc.calibration.export.sumo import ATTRIBUTES, SumoTypes, sumo_types
from asbc.errors import InputError
from asbc.evaluation.protocol import EvaluationSettings
from asbc.posterior import Posterior
from asbc.posterior.encoder import LocalGlobalEncoder, States, StatesAndActions
from asbc.posterior.kernels.attention import GlobalAttention
from asbc.posterior.kernels.spline import Spline
from asbc.posterior.novelty import NEIGHBOURS, Novelty
from asbc.posterior.transform import Bounded, PriorNormal, Softplus
from asbc.run import Run
from asbc.shipped import ShippedRun
from asbc.simulator import Simulator
from asbc.simulator.kinematics import (
    LeaderAccelerationKinematics,
    PaperKinematics,
    SumoKinematics,
)
from asbc.simulator.laws import IDM, FullVelocityDifference, SumoIDM
from asbc.simulator.matern import MaternResidual
from asbc.simulator.residuals import GaussianResidual, NoResidual
from asbc.simulator.sumo_models import SumoModel

KINEMATICS = {
    PaperKinematics: "paper",
    LeaderAccelerationKinematics: "leader_acceleration",
    SumoKinematics: "sumo",
}
RESIDUALS = {NoResidual: "none", GaussianResidual: "gaussian", MaternResidual: "matern"}
TRANSFORMS = {Softplus: "softplus", Bounded: "bounded", PriorNormal: "prior"}
HORIZON = 10.0  # s ahead that the page predicts


class Tensors(NamedTuple):
    """Arrays as text of a page: what they are, and base64 of their zlib stream."""

    listed: list[dict[str, Any]]
    text: str


def describe(run: Run) -> tuple[dict[str, Any], Tensors]:
    """Plain values and weights of a run's model, as the page's scripts read them.

    Raises:
        InputError: where the page could not compute what Python does.
    """
    posterior, simulator = run.posterior, run.simulator
    steps = run.config["data"]["context_steps"]
    model = run.model(context=None)
    novelty = run.novelty(steps, model.context)
    forward, why_not = describe_simulator(simulator)
    settings = EvaluationSettings()
    described = {
        "name": run.shown,
        "label": run.label,
        "predictive": model.predictive,
        "dt": simulator.dt,
        "context_steps": steps,
        "horizon": round(HORIZON / simulator.dt),
        "prefix": {
            "steps": settings.residual_prefix_steps,
            "noise": settings.residual_prefix_noise,
        },
        "prior": [vars(marginal) for marginal in posterior.prior.marginals],
        **describe_network(posterior),
        "simulator": forward,
        "no_predictions": why_not,
        "novelty": None
        if novelty is None
        else {"threshold": novelty.threshold, "neighbours": NEIGHBOURS},
        "sumo": _sumo(sumo_types(simulator), simulator.prior.names),
        "card": _card(run),
    }
    return described, encode_tensors(network_tensors(posterior) | _novelty_tensors(novelty))


def describe_network(posterior: Posterior) -> dict[str, Any]:
    """Encoder, pool, flow and transform of a posterior."""
    encoder, transform, pool = posterior.encoder, posterior.transform, posterior.pool
    if type(encoder) is not LocalGlobalEncoder:
        raise _refused("encoder", encoder, "local_global, actions or differences")
    if type(transform) not in TRANSFORMS:
        raise _refused("transform", transform, "bounded, prior or softplus")
    first: Any = encoder.global_attention[0]
    update: Any = encoder.global_update[0]
    return {
        "encoder": {
            "features": _features(encoder.features),
            "dim": encoder.output_dim,
            "layers": len(encoder.global_attention),
            "heads": first.heads,
            "window": encoder.local_attention[0].window if encoder.local_attention else 0,
            "hidden": update.expand.out_features,
            "buckets": {
                "exact": GlobalAttention.EXACT,
                "count": GlobalAttention.BUCKETS,
                "farthest": GlobalAttention.FARTHEST,
            },
        },
        "pool": None
        if pool is None
        else {
            "steps": pool.context_steps,
            "hidden": pool.mix.out_features,
            "age": pool.age,
            "shortest": pool.shortest,
            "max_segments": pool.max_segments,
        },
        "flow": [_flow_part(part) for part in posterior.flow.flow._transform._transforms],
        "transform": {
            "kind": TRANSFORMS[type(transform)],
            "epsilon": getattr(transform, "epsilon", 0.0),
        },
    }


def _features(features: object) -> dict[str, Any]:
    if type(features) is States:
        return {"kind": "states"}
    if type(features) is StatesAndActions:
        return {"kind": "actions", "dt": features.dt, "differences": features.differences}
    raise _refused("encoder.features", features, "States or StatesAndActions")


def _flow_part(part: Any) -> dict[str, Any]:
    if isinstance(part, Permutation):
        return {"order": part._permutation.tolist()}
    net = part.autoregressive_net
    shared = {
        "dim": net.initial_layer.in_features,
        "degrees": net.initial_layer.degrees.tolist(),
        "blocks": len(net.blocks),
    }
    if type(part) is MaskedAffineAutoregressiveTransform:
        return shared | {"epsilon": part._epsilon}
    if type(part) is MaskedPiecewiseRationalQuadraticAutoregressiveTransform:
        return shared | {
            "bins": part.num_bins,
            "bound": part.tail_bound,
            "least_width": part.min_bin_width,
            "least_height": part.min_bin_height,
            "least_slope": part.min_derivative,
            "scale": Spline(part).scale,
        }
    raise _refused("flow", part, "maf or nsf")


def _refused(what: str, found: object, known: str) -> InputError:
    return InputError(
        f"asbc page: {what} {type(found).__name__} is not known in a browser; use a run with "
        f"{known}, or asbc calibrate"
    )


# What the page does not read: settings that it has as plain values, and what only drives need.
UNREAD = ("transform.", "learned.", "lags")


def network_tensors(posterior: Posterior) -> dict[str, np.ndarray]:
    """All weights by name, those of the flow by place, with what masks take away at zero."""
    masked = {
        f"{name}.weight"
        for name, module in posterior.named_modules()
        if isinstance(module, MaskedLinear)
    }
    state = posterior.state_dict()
    prefix = "flow.flow._transform._transforms."
    tensors = {}
    for name, value in state.items():
        if name.endswith((".mask", ".degrees", "_permutation")) or name.startswith(UNREAD):
            continue
        if name in masked:
            value = value * state[f"{name.removesuffix('.weight')}.mask"]
        key = name.replace(prefix, "flow.").replace(".autoregressive_net.", ".")
        tensors[key] = value.detach().cpu().numpy().astype(np.float32)
    return tensors


def _novelty_tensors(novelty: Novelty | None) -> dict[str, np.ndarray]:
    if novelty is None:
        return {}
    return {
        f"novelty.{name}": getattr(novelty, name).numpy().astype(np.float32)
        for name in ("reference", "centre", "scale")
    }


def encode_tensors(tensors: Mapping[str, np.ndarray]) -> Tensors:
    """Arrays as text; half precision where it is exact."""
    listed, parts = [], []
    for name, value in tensors.items():
        half = value.astype("<f2")
        kept = half if np.array_equal(half.astype("<f4"), value) else value.astype("<f4")
        listed.append({"name": name, "kind": kept.dtype.str, "shape": list(kept.shape)})
        parts.append(np.ascontiguousarray(kept).tobytes())
    packed = zlib.compress(b"".join(parts), 9)
    return Tensors(listed, base64.b64encode(packed).decode("ascii"))


def describe_simulator(simulator: Simulator) -> tuple[dict[str, Any] | None, str]:
    """Law, residual and kinematics; None, and why, where a browser cannot simulate them."""
    law: Any = simulator.law
    residual = simulator.residual
    if simulator.learned is not None:
        return None, "Its learned residual is not known in a browser: no predictions."
    if isinstance(law, SumoModel):
        return None, f"{law.name} is simulated by SUMO itself: predictions need SUMO."
    if type(law) in (IDM, SumoIDM):
        described = {"kind": "idm", "delta": law.delta, "clamped": type(law) is SumoIDM}
    elif type(law) is FullVelocityDifference:
        described = {"kind": "fvd"}
    else:
        return None, f"{type(law).__name__} cannot be simulated in a browser: no predictions."
    if type(residual) not in RESIDUALS or type(simulator.kinematics) not in KINEMATICS:
        return None, f"{type(residual).__name__} is not known in a browser: no predictions."
    return {
        "law": described | {"parameters": list(law.parameters)},
        "residual": {
            "kind": RESIDUALS[type(residual)],
            "nugget": getattr(residual, "nugget", 0.0),
        },
        "kinematics": KINEMATICS[type(simulator.kinematics)],
        "dt": simulator.dt,
        "bounds": list(simulator.acceleration_bounds),
    }, ""


def _sumo(types: SumoTypes, names: Sequence[str]) -> dict[str, Any] | None:
    """What the export of vehicle types must know; None for a law that SUMO does not know."""
    if not set(types.parameters) <= set(names):
        return None
    own: dict[str, Any] = {
        "distribution": types.distribution,
        "length": types.length,
        "vehicle_class": types.vehicle_class,
        "step_length": types.step_length,
    }
    if types.model is not None:
        model = types.model
        return own | {"model": model.model, "attributes": model.attributes, "fixed": model.fixed}
    idm = {"model": "IDM", "attributes": ATTRIBUTES, "fixed": {"delta": types.delta}}
    return own | idm | {"emergency_decel": types.emergency_decel}


def _card(run: Run) -> dict[str, Any]:
    """What a user should know of the model, as lines of text."""
    data = run.config["data"]
    read = f"{data['context_steps']} samples of {data['dt']:g} s"
    if run.posterior.pool is not None:
        read = f"up to {run.posterior.pool.max_segments} segments of at most {read}"
    lines = {"reads": f"{read}, resampled from other steps"}
    if not isinstance(run, ShippedRun):
        return {"title": run.label, "lines": lines, "limits": []}
    card = run.card
    ranges = card["ranges"]
    low, high = ranges["leader_speed"]
    near, far = ranges["gap"]
    lines |= {
        "at home": f"leaders {low:g} to {high:.3g} m/s, gaps {near:.3g} to {far:.3g} m",
        "trained on": f"{card['simulations']:,} simulations behind {card['leaders']}",
        "version": f"asbc {run.version}, SHA-256 {run.digest[:16]}…",
    }
    return {"title": card["title"], "lines": lines, "limits": card["limits"]}
