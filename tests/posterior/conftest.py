"""Small posteriors that the tests share; nothing here is trained."""

import copy
import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from asbc.posterior.encoder import LocalGlobalEncoder
from asbc.posterior.estimator import PosteriorEstimator
from asbc.posterior.flow import MaskedAutoregressiveFlow, NeuralSplineFlow
from asbc.posterior.transform import Bounded, Softplus

FLOWS = {"maf": MaskedAutoregressiveFlow, "nsf": NeuralSplineFlow}


class BoxPrior:
    """Uniform on a box."""

    def __init__(self, low: list[float], high: list[float]) -> None:
        self.low, self.high = torch.tensor(low), torch.tensor(high)
        self.dim = len(low)
        self.names = tuple(f"p{i}" for i in range(self.dim))

    def icdf(self, u: Tensor) -> Tensor:
        return self.low + (self.high - self.low) * u

    def contains(self, theta: Tensor) -> Tensor:
        return ((theta >= self.low) & (theta <= self.high)).all(-1)

    def sample(self, n: int, rng: np.random.Generator) -> Tensor:
        return self.icdf(torch.from_numpy(rng.random((n, self.dim), dtype=np.float32)))


@pytest.fixture(scope="session")
def box_prior() -> type[BoxPrior]:
    return BoxPrior


@pytest.fixture(params=FLOWS)
def flow_class(request) -> type[nn.Module]:
    return FLOWS[request.param]


def roughen(module: nn.Module, size: float = 0.1, seed: int = 0) -> nn.Module:
    """Move every weight, so that zero initialisations and near-identities do not hide errors."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter += size * noise / math.sqrt(max(1, parameter.shape[-1] / 8))
    return module


@pytest.fixture(scope="session")
def roughened() -> Callable[..., nn.Module]:
    return roughen


@pytest.fixture(scope="session")
def make_estimator() -> Callable[..., PosteriorEstimator]:
    """A small estimator over a box, with roughened weights."""

    def make(
        prior: BoxPrior,
        flow: str = "maf",
        transform: str = "bounded",
        dropout: float = 0.2,
        **flow_options: float,
    ) -> PosteriorEstimator:
        torch.manual_seed(0)
        options = {"layers": 2, "hidden": 16, "dropout": dropout, **flow_options}
        estimator = PosteriorEstimator(
            LocalGlobalEncoder(model_dim=16, heads=2, dropout=dropout),
            partial(FLOWS[flow], **options),
            Bounded.from_prior(prior) if transform == "bounded" else Softplus(),
            prior,
        )
        return roughen(estimator, 0.05)

    return make


@pytest.fixture(scope="session")
def fit() -> Callable[..., None]:
    """Train an estimator on given pairs: one cycle of step sizes, the best epoch on a tenth."""

    def train(
        estimator: PosteriorEstimator,
        theta: Tensor,
        states: Tensor,
        epochs: int,
        batch: int = 100,
        step_size: float = 2e-3,
    ) -> None:
        held = len(theta) // 10
        estimator.posterior.set_scaling(theta, states)
        optimizer = estimator.configure_optimizers()
        total = epochs * math.ceil((len(theta) - held) / batch)
        cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, step_size, total_steps=total)
        best, weights = math.inf, {}
        for epoch in range(epochs):
            estimator.train()
            order = np.random.default_rng(epoch).permutation(len(theta) - held) + held
            for rows in torch.from_numpy(order).split(batch):
                loss = -estimator.posterior.training_log_prob(theta[rows], states[rows]).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                cycle.step()
            value = -float(estimator.posterior.log_prob(theta[:held], states[:held]).mean())
            if value < best:
                best, weights = value, copy.deepcopy(estimator.state_dict())
        estimator.load_state_dict(weights)
        estimator.eval()

    return train
