"""The LightningModule that trains the posterior by maximum likelihood on simulated pairs.

Minimising E[-log q(theta | x)] over pairs (theta, x) from prior and simulator minimises the
expected KL divergence from the exact posterior to q (the paper's derivation of the NPE objective).
The loss is the physical-space log-density, so losses under different transforms compare.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor

from asbc.errors import InputError
from asbc.posterior.encoder import TrajectoryEncoder
from asbc.posterior.flow import ConditionalFlow
from asbc.posterior.posterior import Posterior
from asbc.posterior.segment_pool import SegmentPool
from asbc.posterior.transform import Transform
from asbc.simulator import Prior
from asbc.simulator.learned_residual import LearnedResidual
from asbc.utils.checks import check_number

# Learning rate of a learned residual, relative to that of the rest.
LATE_RATE = 20.0


class PosteriorEstimator(pl.LightningModule):
    """The amortised posterior estimator.

    Args:
        encoder: Maps standardised states (B, T, input_dim) to context vectors (B, output_dim).
        flow: Makes the conditional flow, called as `flow(dim=..., context_dim=...)`.
        transform: From unconstrained to physical parameters.
        prior: Sets the parameters' names and number, their scale, and the support of samples.
        learning_rate: Adam's step size.
        pool: Makes what joins a driver's segments, called as `pool(dim=...)`; None: a driver has
            one segment.
        learned_residual: Hidden units of residuals that are learned along with the posterior
            (`objective=predictive`); 0: none.
    """

    def __init__(
        self,
        encoder: TrajectoryEncoder,
        flow: Callable[..., ConditionalFlow],
        transform: Transform,
        prior: Prior,
        learning_rate: float = 1e-3,
        pool: Callable[..., SegmentPool] | None = None,
        learned_residual: int = 0,
    ) -> None:
        super().__init__()
        check_number("estimator.learning_rate", learning_rate, above=0)
        density = flow(dim=prior.dim, context_dim=encoder.output_dim + transform.size)
        joined = None if pool is None else pool(dim=encoder.output_dim)
        learned = LearnedResidual(learned_residual, prior.names) if learned_residual else None
        self.posterior = Posterior(encoder, density, transform, prior, joined, learned)
        # What training steps minimise, if it is not the loss on simulated pairs.
        self.objective: Callable[[Posterior, dict[str, Any]], Tensor] | None = None
        # Plain values only: a checkpoint must load with weights_only=True.
        self.save_hyperparameters(
            {"learning_rate": float(learning_rate), "parameter_names": list(prior.names)}
        )

    def forward(self, *_: Tensor) -> Tensor:
        """Not defined; see `Posterior.forward`."""
        raise TypeError("call posterior.log_prob or posterior.sample, or posterior.member(key)")

    def training_step(self, batch: dict[str, Any], batch_idx: int = 0) -> Tensor:
        """Mean negative log-density of the batch, weighted if it has weights (of mean one).

        With an objective of another stage, that.
        """
        loss = self._loss if self.objective is None else partial(self.objective, self.posterior)
        return self._noted("train/loss", batch, loss)

    def validation_step(self, batch: dict[str, Any], batch_idx: int = 0) -> Tensor:
        """The same on the hold-out, without dropout."""
        return self._noted("val/loss", batch, self._loss)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam, in its fused form: several times cheaper a step for a model of this size.

        A learned residual starts from nothing when the rest is nearly ready, so it has a group of
        its own, for larger steps.
        """
        late = [] if self.posterior.learned is None else [*self.posterior.learned.parameters()]
        apart = {id(weights) for weights in late}
        groups: list[dict[str, Any]] = [
            {"params": [weights for weights in self.parameters() if id(weights) not in apart]},
            {"params": late, "faster": LATE_RATE},
        ]
        return torch.optim.Adam(
            groups if late else groups[:1], lr=self.hparams["learning_rate"], fused=True
        )

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse the weights of another model's parameters."""
        saved = checkpoint.get("hyper_parameters", {}).get("parameter_names")
        names = self.hparams["parameter_names"]
        if saved is not None and list(saved) != names:
            raise InputError(
                f"checkpoint was trained for the parameters {saved}, this model has {names}; "
                "use the same residual and prior as the run"
            )

    def _noted(
        self, name: str, batch: dict[str, Any], objective: Callable[[dict[str, Any]], Tensor]
    ) -> Tensor:
        """The loss, logged as its mean over all rows of an epoch, of all processes."""
        loss = objective(batch)
        # One process's share of a batch counts for the whole of it: it is weighted so.
        rows = batch["rows"] if "rows" in batch else len(batch["theta"])
        self.log(name, loss, batch_size=rows, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def _loss(self, batch: dict[str, Any]) -> Tensor:
        columns = batch.get("columns")
        loss = -self.posterior.training_log_prob(batch["theta"], batch["states"], columns)
        return (loss * batch["weight"]).mean() if "weight" in batch else loss.mean()
