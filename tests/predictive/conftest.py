import pytest
import torch

from asbc.config import build, compose
from asbc.predictive.objective import Predictive


@pytest.fixture(scope="session")
def small():
    """A small objective: short windows, few draws."""
    return Predictive(
        horizon=12, windows=6, draws=4, validation_draws=8, stride=10, largest_scale=1.0
    )


@pytest.fixture(scope="session")
def small_posterior():
    """Posteriors of a toy network by flow and residual, untrained, no map the identity."""

    def make(flow: str, residual: str, *overrides: str):
        cfg = compose(
            "train",
            [
                *(f"flow={flow}", f"residual={residual}", "transform=bounded", "flow.layers=2"),
                *("flow.hidden=8", "encoder.model_dim=8", "encoder.layers=1", "encoder.heads=2"),
                *("encoder.dropout=0", "flow.dropout=0", *overrides),
            ],
        )
        torch.manual_seed(0)
        posterior = build(cfg.estimator).posterior
        with torch.no_grad():
            for value in posterior.parameters():
                value.add_(0.1 * torch.randn_like(value))
        posterior.input_mean.copy_(torch.tensor([20.0, 8.0, 0.0]))
        posterior.input_std.copy_(torch.tensor([8.0, 4.0, 1.0]))
        return posterior

    return make
