"""Novelty distances against scikit-learn, and flags at the nominal rate."""

import numpy as np
import pytest
import torch
from sklearn.neighbors import NearestNeighbors

from asbc.errors import InputError
from asbc.posterior.novelty import NEIGHBOURS, Novelty


def simulated(count: int, seed: int) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.normal(size=(count, 6)) * [1, 5, 0.1, 2, 1, 1] + 3).float()


def test_distance_is_the_mean_over_scikit_learns_neighbours() -> None:
    embeddings, new = simulated(400, 0), simulated(50, 1)
    novelty = Novelty.fit(embeddings)
    reference = embeddings[:200].numpy()
    scale = reference.std(0, ddof=1)
    search = NearestNeighbors(n_neighbors=NEIGHBOURS).fit(reference / scale)
    expected = search.kneighbors(new.numpy() / scale)[0].mean(1)
    np.testing.assert_allclose(novelty.distance(new), expected, rtol=1e-3)


def test_simulations_are_flagged_at_one_percent_and_strangers_always() -> None:
    novelty = Novelty.fit(simulated(4000, 0))
    assert novelty.flagged(simulated(4000, 1)).float().mean() == pytest.approx(0.01, abs=0.006)
    # Typical in every coordinate alone, but not jointly: outside the cloud by its norm.
    strangers = simulated(50, 2).mean(0) + 4 * simulated(2000, 0).std(0)
    assert novelty.flagged(strangers[None]).all()


def test_too_few_simulations_are_refused() -> None:
    with pytest.raises(InputError, match="at least 20"):
        Novelty.fit(simulated(10, 0))
