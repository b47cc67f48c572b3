"""sbi's NPE as a posterior like ours, for the benchmarks that compare with it."""

from typing import Any

import torch
from torch import Tensor, nn

from asbc.posterior.encoder import Features, States
from asbc.posterior.posterior import PosteriorSamples
from asbc.simulator import Prior

BATCH = 128


class _NoTracker:
    """Keeps sbi from writing TensorBoard files into the working folder."""

    log_dir = ""

    def log_metric(self, *_: Any, **__: Any) -> None:
        """Nothing."""

    log_metrics = log_params = add_figure = flush = log_metric


class SbiPosterior:
    """sbi's NPE with a MAF of our flow's sizes and the given embedding; the rest is its default.

    Args:
        prior: sets the support; sbi redraws samples outside it.
        embedding: from trajectories to context vectors.
        features: what the embedding reads of a trajectory; None: the states.
    """

    def __init__(
        self, prior: Prior, embedding: nn.Module, features: Features | None = None
    ) -> None:
        from sbi.inference import NPE
        from sbi.neural_nets import posterior_nn
        from sbi.utils import BoxUniform

        density = posterior_nn(
            "maf", hidden_features=64, num_transforms=5, embedding_net=embedding
        )
        self.trainer = NPE(
            BoxUniform(prior.low, prior.high),
            density,
            show_progress_bars=False,
            tracker=_NoTracker(),
        )
        self.features = features or States()
        self.posterior: Any = None
        self.epochs = 0

    def train(self, theta: Tensor, states: Tensor, max_epochs: int, **options: Any) -> None:
        """Train with sbi's defaults, early stopping included."""
        self.trainer.append_simulations(theta, self.features(states, None)[0])
        density = self.trainer.train(max_num_epochs=max_epochs, **options)
        self.posterior = self.trainer.build_posterior(density)
        self.epochs = self.trainer.summary["epochs_trained"][-1]

    def sample(self, states: Tensor, n: int, rng: object) -> PosteriorSamples:
        """n draws for each trajectory, with torch's own generator."""
        x, _ = self.features(states, None)
        draws = self.posterior.sample_batched((n,), x=x, show_progress_bars=False)
        return PosteriorSamples(draws.transpose(0, 1), torch.zeros(len(states)))
