"""Every config file of the posterior composes and builds what the paper's tables say."""

from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate

from asbc.posterior.encoder import LocalGlobalEncoder, States, StatesAndActions
from asbc.posterior.flow import MaskedAutoregressiveFlow, NeuralSplineFlow
from asbc.posterior.laplace import LaplaceGuide
from asbc.posterior.transform import Bounded, PriorNormal, Softplus
from asbc.utils.random import stream

CONF = Path(__file__).parents[2] / "conf"
GROUPS = {
    "encoder": {"local_global": LocalGlobalEncoder},
    "features": {
        "states": States,
        "actions": StatesAndActions,
        "differences": StatesAndActions,
    },
    "flow": {"maf": MaskedAutoregressiveFlow, "nsf": NeuralSplineFlow},
    "guide": {"none": type(None), "laplace": LaplaceGuide},
    "transform": {"softplus": Softplus, "bounded": Bounded, "prior": PriorNormal},
}


def build(
    flow: str = "maf",
    transform: str = "softplus",
    residual: str = "gaussian",
    features: str = "states",
    guide: str = "none",
):
    groups = {"residual": residual, "features": features, "flow": flow, "transform": transform}
    overrides = [f"{group}={name}" for group, name in {**groups, "guide": guide}.items()]
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return instantiate(compose("train", overrides).estimator)


def test_every_file_is_covered_here():
    for group, classes in {**GROUPS, "estimator": {"default": None}}.items():
        assert {path.stem for path in (CONF / group).glob("*.yaml")} == set(classes)


@pytest.mark.parametrize("flow", GROUPS["flow"])
@pytest.mark.parametrize("transform", GROUPS["transform"])
@pytest.mark.parametrize(("residual", "dim"), [("gaussian", 6), ("matern", 7)])
def test_estimator_builds_and_works(flow, transform, residual, dim):
    estimator = build(flow, transform, residual)
    posterior = estimator.posterior
    assert type(posterior.encoder) is LocalGlobalEncoder
    assert type(posterior.flow) is GROUPS["flow"][flow]
    assert type(posterior.transform) is GROUPS["transform"][transform]
    states = torch.rand(3, 30, 3) * torch.tensor([30.0, 20.0, 2.0])
    samples = estimator.sample(states, 10, stream(0, "conf")).theta
    assert samples.shape == (3, 10, dim)
    assert bool(posterior.prior.contains(samples).all())
    assert bool(torch.isfinite(estimator.log_prob(samples, states)).all())


def test_the_papers_encoder_table():
    encoder = build().posterior.encoder
    assert encoder.input_projection.weight.shape == (64, 3)
    assert len(encoder.global_attention) == 2
    assert {attention.heads for attention in encoder.global_attention} == {4}
    assert encoder.local_attention[0].window == 4
    assert encoder.local_update[0].expand.weight.shape == (256, 64)
    assert encoder.local_update[0].hidden_dropout.probability == pytest.approx(0.2, abs=1e-3)
    assert encoder(torch.zeros(1, 75, 3)).shape == (1, 64)


def test_learning_rate_and_bounded_box():
    estimator = build(transform="bounded")
    assert estimator.hparams["learning_rate"] == 1e-3
    assert torch.equal(estimator.posterior.transform.low, estimator.posterior.prior.low)
    assert torch.equal(estimator.posterior.transform.high, estimator.posterior.prior.high)


@pytest.mark.parametrize(("features", "size"), [("states", 3), ("actions", 6), ("differences", 8)])
def test_the_encoder_fits_its_features(features, size):
    posterior = build(features=features).posterior
    assert type(posterior.features) is GROUPS["features"][features]
    assert posterior.features.size == posterior.encoder.input_dim == size


@pytest.mark.parametrize("residual", ["gaussian", "matern"])
@pytest.mark.parametrize("guide", GROUPS["guide"])
def test_the_flow_reads_what_the_guide_says(guide, residual):
    posterior = build(transform="prior", residual=residual, guide=guide).posterior
    assert type(posterior.guide) is GROUPS["guide"][guide]
    states = torch.rand(3, 30, 3) * torch.tensor([30.0, 20.0, 2.0])
    size = posterior.guide.size if posterior.guide else 0
    assert posterior.encode(states).shape == (3, 64 + size)
