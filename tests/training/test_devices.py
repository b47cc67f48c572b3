"""Nothing that a training step computes with is left on the CPU.

The meta device stands for a GPU: it has shapes and no values, and refuses tensors of another.
"""

import pytest
import torch

from asbc.config import build, compose
from asbc.training.loop import on_cpu

# With the default flow: nflows's splines look at values, which the meta device has not.
CHOICES = [
    *(("local_global", "softplus"), ("actions", "bounded")),
    *(("differences", "prior"), ("local_global", "laplace")),
]


@pytest.mark.parametrize("encoder, transform", CHOICES)
def test_a_step_has_all_it_needs_on_the_device(encoder, transform):
    cfg = compose("train", [f"encoder={encoder}", f"transform={transform}"])
    estimator = build(cfg.estimator).to("meta")
    posterior = estimator.posterior
    batch = {
        "theta": torch.rand(4, posterior.prior.dim, device="meta"),
        "states": torch.rand(4, 30, 3, device="meta"),
        "columns": torch.rand(4, posterior.transform.size, device="meta"),
        "weight": torch.ones(4, device="meta"),
    }
    loss = estimator._loss(batch)
    loss.backward()
    assert loss.device.type == "meta"
    assert all(p.grad is None or p.grad.device.type == "meta" for p in estimator.parameters())


def test_the_prior_is_the_same_on_another_device():
    prior = build(compose("train").prior)
    assert prior.to(torch.device("cpu")) is prior
    moved = prior.to(torch.device("meta"))
    theta = torch.rand(3, prior.dim, device="meta")
    assert moved.log_prob(theta).device.type == moved.to_normal(theta).device.type == "meta"
    assert prior.low.device.type == "cpu" and moved.names == prior.names


def test_on_the_cpu_the_posterior_itself_is_designed_with():
    estimator = build(compose("train").estimator)
    with on_cpu(estimator) as posterior:
        assert posterior is estimator.posterior


def test_elsewhere_a_copy_is_designed_with_and_the_own_comes_back(monkeypatch):
    estimator = build(compose("train").estimator)
    own = estimator.posterior
    # A device whose values can be had back, seen as another than the CPU.
    monkeypatch.setattr("asbc.training.loop.HOME", "elsewhere")
    with on_cpu(estimator) as posterior:
        assert posterior is estimator.posterior and posterior is not own
        assert all(map(torch.equal, posterior.state_dict().values(), own.state_dict().values()))
    assert estimator.posterior is own and list(estimator._modules) == ["posterior"]
