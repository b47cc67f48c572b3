"""Every config file of the posterior composes and builds what the paper's tables say."""

import pytest
import torch

from asbc.config import CONF, compose
from asbc.config import build as build_section
from asbc.posterior.encoder import LocalGlobalEncoder, States, StatesAndActions
from asbc.posterior.estimator import PosteriorEstimator
from asbc.posterior.flow import MaskedAutoregressiveFlow, NeuralSplineFlow
from asbc.posterior.laplace import Laplace
from asbc.posterior.transform import Bounded, PriorNormal, Softplus
from asbc.utils.random import stream

# What the files of ours build; others are found and tested as they are.
CLASSES = {
    "encoder": {name: LocalGlobalEncoder for name in ("local_global", "actions", "differences")},
    "flow": {"maf": MaskedAutoregressiveFlow, "nsf": NeuralSplineFlow},
    "transform": {
        "softplus": Softplus,
        "bounded": Bounded,
        "prior": PriorNormal,
        "laplace": Laplace,
    },
}
FILES = {
    group: sorted(path.stem for path in (CONF / group).glob("*.yaml"))
    for group in (*CLASSES, "residual")
}


def build(**groups: str) -> PosteriorEstimator:
    overrides = [f"{group}={name}" for group, name in groups.items()]
    return build_section(compose("train", overrides).estimator)


def assert_works(estimator: PosteriorEstimator) -> None:
    """Draws inside the support, with finite densities."""
    posterior = estimator.posterior
    states = torch.rand(3, 30, 3) * torch.tensor([30.0, 20.0, 2.0])
    samples = posterior.sample(states, 10, stream(0, "conf")).theta
    assert samples.shape == (3, 10, posterior.prior.dim)
    assert bool(posterior.prior.contains(samples).all())
    assert bool(torch.isfinite(posterior.log_prob(samples, states)).all())
    assert posterior.encode(states).shape == (
        3,
        posterior.encoder.output_dim + posterior.transform.size,
    )


@pytest.mark.parametrize("flow", FILES["flow"])
@pytest.mark.parametrize("transform", FILES["transform"])
@pytest.mark.parametrize("residual", ["gaussian", "matern"])
def test_every_combination_builds_and_works(flow, transform, residual):
    assert_works(build(flow=flow, transform=transform, residual=residual))


@pytest.mark.parametrize(
    ("group", "name"), [(g, n) for g in ("encoder", "residual") for n in FILES[g]]
)
def test_every_file_builds_and_works(group, name):
    assert_works(build(**{group: name}))


@pytest.mark.parametrize(
    ("group", "name", "kind"),
    [(g, name, kind) for g, kinds in CLASSES.items() for name, kind in kinds.items()],
)
def test_our_files_build_what_they_are_named_after(group, name, kind):
    assert type(getattr(build(**{group: name}).posterior, group)) is kind


@pytest.mark.parametrize(("residual", "dim"), [("gaussian", 6), ("matern", 7)])
def test_the_posterior_has_the_parameters_of_law_and_residual(residual, dim):
    assert build(residual=residual).posterior.prior.dim == dim


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


@pytest.mark.parametrize(
    ("encoder", "features", "size"),
    [
        ("local_global", States, 3),
        ("actions", StatesAndActions, 6),
        ("differences", StatesAndActions, 8),
    ],
)
def test_the_encoder_fits_its_features(encoder, features, size):
    posterior = build(encoder=encoder).posterior
    assert type(posterior.features) is features
    assert posterior.features.size == posterior.encoder.input_dim == size
