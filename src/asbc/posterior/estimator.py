"""The LightningModule that trains the posterior by maximum likelihood on simulated pairs.

Minimising E[-log q(theta | x)] over pairs (theta, x) from prior and simulator minimises the
expected KL divergence from the exact posterior to q (the paper's derivation of the NPE objective).
The loss is the physical-space log-density, so losses under different transforms compare.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from torch import Tensor

from asbc.posterior.features import Features, States
from asbc.posterior.flow import ConditionalFlow
from asbc.posterior.guide import Guide
from asbc.posterior.members import Member
from asbc.posterior.posterior import (
    Posterior,
    PosteriorSamples,
    PriorLike,
    TrajectoryEncoder,
    TransformLike,
)
from asbc.posterior.transform import PriorNormal
from asbc.utils.checks import InputError


class PosteriorEstimator(pl.LightningModule):
    """The amortised posterior estimator.

    Args:
        encoder: Maps standardised states (B, T, input_dim) to context vectors (B, output_dim).
        flow: Makes the conditional flow, called as `flow(dim=..., context_dim=...)`.
        transform: From unconstrained to physical parameters.
        prior: Sets the parameters' names and number, their scale, and the support of samples.
        learning_rate: Adam's step size.
        features: What the encoder reads at each step; None: the states.
        guide: Coordinates for the flow, by trajectory; needs the transform `PriorNormal`.
    """

    def __init__(
        self,
        encoder: TrajectoryEncoder,
        flow: Callable[..., ConditionalFlow],
        transform: TransformLike,
        prior: PriorLike,
        learning_rate: float = 1e-3,
        features: Features | None = None,
        guide: Guide | None = None,
    ) -> None:
        super().__init__()
        if learning_rate <= 0:
            raise InputError(f"estimator: learning_rate is {learning_rate}, expected > 0")
        if guide is not None and not isinstance(transform, PriorNormal):
            raise InputError("guide: its coordinates are those of transform=prior; choose that")
        context_dim = encoder.output_dim + (guide.size if guide else 0)
        density = flow(dim=prior.dim, context_dim=context_dim)
        self.posterior = Posterior(
            encoder, density, transform, prior, features or States(encoder.input_dim), guide
        )
        # Plain values only: a checkpoint must load with weights_only=True.
        self.save_hyperparameters(
            {"learning_rate": float(learning_rate), "parameter_names": list(prior.names)}
        )

    def forward(self, *_: Tensor) -> Tensor:
        """Not defined; see `Posterior.forward`."""
        raise TypeError("call log_prob or sample (no dropout), or member(key) (one dropout mask)")

    def set_input_scaling(self, states: Tensor) -> None:
        """Standardise inputs by the mean and standard deviation of `states` (N, T, input)."""
        self.posterior.set_input_scaling(states)

    def set_guide_scaling(self, theta: Tensor, states: Tensor) -> None:
        """Standardise a guide's coordinates; as `Posterior.set_guide_scaling`."""
        self.posterior.set_guide_scaling(theta, states)

    def encode(self, states: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Context vectors; as `Posterior.encode`."""
        return self.posterior.encode(states, lengths)

    def log_prob(self, theta: Tensor, states: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Physical-space log-density; as `Posterior.log_prob`."""
        return self.posterior.log_prob(theta, states, lengths)

    def log_prob_grid(
        self, theta: Tensor, states: Tensor, lengths: Tensor | None = None
    ) -> Tensor:
        """Log-densities of all pairs (C, N); as `Posterior.log_prob_grid`."""
        return self.posterior.log_prob_grid(theta, states, lengths)

    def sample(
        self,
        states: Tensor,
        n: int,
        rng: np.random.Generator,
        lengths: Tensor | None = None,
        max_tries: int = 20,
    ) -> PosteriorSamples:
        """n draws for each trajectory; as `Posterior.sample`."""
        return self.posterior.sample(states, n, rng, lengths, max_tries)

    def member(self, key: int) -> Member:
        """The MC-dropout member of this key, frozen at the present weights."""
        return Member(self.posterior, key)

    def training_step(self, batch: dict[str, Tensor], batch_idx: int = 0) -> Tensor:
        """Mean negative log-density of the batch, weighted if it has weights (of mean one)."""
        loss = self._loss(batch)
        self.log("train/loss", loss, batch_size=len(batch["theta"]), on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int = 0) -> Tensor:
        """The same on the hold-out, without dropout."""
        loss = self._loss(batch)
        self.log("val/loss", loss, batch_size=len(batch["theta"]), on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam, in its fused form: several times cheaper a step for a model of this size."""
        return torch.optim.Adam(self.parameters(), lr=self.hparams["learning_rate"], fused=True)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse the weights of another model's parameters."""
        saved = checkpoint.get("hyper_parameters", {}).get("parameter_names")
        names = self.hparams["parameter_names"]
        if saved is not None and list(saved) != names:
            raise InputError(
                f"checkpoint was trained for the parameters {saved}, this model has {names}; "
                "use the same residual and prior as the run"
            )

    def _loss(self, batch: dict[str, Tensor]) -> Tensor:
        loss = -self.posterior.training_log_prob(batch["theta"], batch["states"])
        return (loss * batch["weight"]).mean() if "weight" in batch else loss.mean()
