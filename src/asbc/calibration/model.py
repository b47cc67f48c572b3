"""A trained posterior together with what it was trained on."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from asbc.data.pairset import PairSet
from asbc.data.source import DataSource
from asbc.evaluation.draws import simulate_drivers
from asbc.evaluation.novelty import Novelty
from asbc.evaluation.provenance import load_posterior, training_windows
from asbc.evaluation.streams import RowStreams
from asbc.evaluation.trained_run import TrainedRun
from asbc.posterior import PosteriorEstimator, PosteriorSamples
from asbc.simulator import Simulator
from asbc.simulator.contexts import ContextSimulator
from asbc.utils.random import stream


@dataclass(frozen=True)
class Model:
    """What calibrates: network, simulator, and the context the network reads.

    Attributes:
        posterior: q(theta | context).
        simulator: prior and likelihood that q stands for.
        context_steps: samples of each pair that the posterior is conditioned on.
        residual: name of the residual model, e.g. "matern".
        robust: whether training allowed for drivers unlike the simulator, so that the simulator's
            likelihood is not what the posterior stands for.
    """

    posterior: PosteriorEstimator
    simulator: Simulator
    context_steps: int
    residual: str
    robust: bool = False

    def contexts(self, pairs: PairSet) -> Tensor:
        """What the posterior of each pair is conditioned on, (pair, step, 3)."""
        return pairs.contexts(self.context_steps)

    def sample(self, pairs: PairSet, n: int, seed: int) -> PosteriorSamples:
        """n draws for each pair; those of `evaluate.py` with the same seed."""
        streams = [stream(seed, "posterior", f"pair {name}") for name in pairs.pair_id]
        return self.posterior.sample(self.contexts(pairs), n, RowStreams(streams))

    def fingerprint(self) -> str:
        """A short hash of the weights."""
        digest = hashlib.blake2b(digest_size=8)
        for name, value in sorted(self.posterior.state_dict().items()):
            digest.update(name.encode())
            digest.update(value.detach().to(torch.float32).contiguous().numpy().tobytes())
        return digest.hexdigest()


def keyed(pairs: PairSet, seed: int, purpose: str) -> RowStreams:
    """A stream of random numbers for each pair, whatever other pairs there are."""
    return RowStreams([stream(seed, purpose, name) for name in pairs.pair_id])


def load_model(
    run: TrainedRun, build: Callable[[Any], Any], context_steps: int | None = None
) -> Model:
    """The best round's posterior of a run, and its simulator.

    Args:
        run: an opened run folder.
        build: makes an object of a config section, i.e. `hydra.utils.instantiate`.
        context_steps: samples of context; None for those of the training.
    """
    simulator, posterior = build(run.config["simulator"]), build(run.config["estimator"])
    load_posterior(posterior, run)
    steps = context_steps or run.config["data"]["context_steps"]
    robust = not build(run.config["robust"]).exact
    return Model(posterior.eval(), simulator, steps, run.config["residual"]["name"], robust)


def training_novelty(
    model: Model,
    training: ContextSimulator,
    training_data: DataSource,
    pairs: PairSet,
    drivers: int,
    seed: int,
) -> tuple[Novelty | None, str]:
    """The yardstick of the training simulations, and a note where their data are gone.

    Args:
        model: what embeds contexts.
        training: what simulated them.
        training_data: leaders to simulate behind.
        pairs: stand in where the training data cannot be read.
        drivers: simulated drivers; 0 for no yardstick.
        seed: of the simulations.
    """
    if not drivers:
        return None, ""
    windows, note = training_windows(training_data, pairs, model.context_steps)
    simulated = simulate_drivers(training, windows, drivers, seed)
    return Novelty.fit(model.posterior.encode(simulated.states)), note
