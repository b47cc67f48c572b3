"""Posteriors of several segments against NUTS on the product of the segments' likelihoods."""

import subprocess
import sys

import numpy as np
import pytest
import torch

pytest.importorskip("numpyro")
from asbc.data.windows import leader_windows  # noqa: E402
from asbc.exact import histories  # noqa: E402
from asbc.exact.diagnostics import NutsSettings  # noqa: E402
from asbc.exact.histories import (  # noqa: E402
    SeveralSegments,
    closeness_by_count,
    exact_histories,
    first_slots,
)
from asbc.posterior.posterior import PosteriorSamples  # noqa: E402
from asbc.simulator.robust import ContextSimulator  # noqa: E402
from asbc.utils.random import uniform  # noqa: E402

QUICK = NutsSettings(chains=2, warmup=100, draws=50, max_tree_depth=5)


class PriorDraws:
    """The prior in place of a posterior: calibrated with any number of segments."""

    def __init__(self, prior) -> None:
        self.prior = prior

    def sample(self, states, n, rng) -> PosteriorSamples:
        theta = self.prior.icdf(uniform(rng, len(states), n, self.prior.dim))
        return PosteriorSamples(theta, torch.zeros(len(states)))

    def log_prob(self, theta, states) -> torch.Tensor:
        return self.prior.log_prob(theta)


@pytest.fixture
def setting(simulators, typical, pairs_of):
    simulator = simulators["gaussian"]
    pairs = pairs_of(simulator, typical["gaussian"].expand(8, -1), 75)
    return ContextSimulator(simulator), leader_windows(pairs, 75, 50)


def test_drivers_have_so_many_segments_of_mixed_lengths() -> None:
    lengths, age = SeveralSegments(4).draw(500, 75, 0.2, np.random.default_rng(0))
    assert lengths.shape == (500, 4) and int(lengths.min()) == 15 and int(lengths.max()) == 75
    assert bool((age[:, 0] == 0).all()) and bool((age[:, 1:] > 0)[~age[:, 1:].isnan()].all())
    assert 0.4 < float(age[:, 1].isnan().double().mean()) < 0.6


def test_the_exact_posterior_narrows_with_segments_and_the_prior_does_not(
    setting, tmp_path, monkeypatch
) -> None:
    training, windows = setting
    wanted = {"drivers": 4, "draws": 100, "nuts": QUICK, "cache": tmp_path}
    exact = exact_histories(training, windows, (1, 4), **wanted)
    # They are kept, and not made again.
    monkeypatch.setattr(histories, "_exact_draws", lambda *_: pytest.fail("sampled again"))
    again = exact_histories(training, windows, (4, 1), **wanted)
    assert all(torch.equal(again[count].draws, exact[count].draws) for count in exact)
    one, four = exact[1], exact[4]
    assert torch.equal(one.theta, four.theta) and one.draws.shape == (4, 100, 6)
    assert torch.equal(first_slots(four.states, 1).states, one.states.states)
    posterior = PriorDraws(training.prior)
    rows = closeness_by_count(posterior, training, windows, exact, sbc_drivers=60, sbc_sets=3)
    assert [row["segments"] for row in rows] == [1, 4]
    assert rows[1]["exact_spread"] < 0.8 * rows[0]["exact_spread"] < 0.8
    for row in rows:
        assert row["spread"] == pytest.approx(1, abs=0.05)
        assert row["c2st"] > 0.85 and row["mean_error"] > 0.5
        assert row["sbc_inside"] == row["sbc_sets"] == 3  # the prior is calibrated
        assert row["sbc_p"] > 0.05
        assert 3 * row["segments"] <= row["seconds"] <= 15 * row["segments"]


@pytest.mark.slow
def test_evidence_adds_up_over_segments_as_in_the_exact_posterior(pytestconfig, tmp_path) -> None:
    """`experiment=best history=segments` against NUTS.

    Measured on one run, which the limits leave some room around. For 1, 2 and 4 segments: C2ST
    0.620, 0.610, 0.615, mean error 0.15, 0.16, 0.18, spread 1.04, 1.08, 1.11 times the exact
    one's, smallest p-value of 70 rank tests, times 70, 0.769, 1.000, 0.140. A network that had to
    learn how evidence adds up (transform=bounded) had C2ST 0.893, 0.912, 0.959, spreads 1.4, 1.7,
    2.3 times the exact ones.
    """
    command = [sys.executable, "benchmarks/bench_segments.py", "--cache", str(tmp_path)]
    result = subprocess.run(
        command, cwd=pytestconfig.rootpath, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    header, _, *lines = (
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in result.stdout.splitlines()
        if line.startswith("|")
    )
    rows = [dict(zip(header, line, strict=True)) for line in lines]
    assert [row["segments"] for row in rows] == ["1", "2", "4"]
    spread, exact, c2st, error, p_value = (
        np.array([float(row[name]) for row in rows])
        for name in ("spread", "exact spread", "C2ST", "mean error", "SBC, corrected p")
    )
    assert (np.diff(exact) < 0).all() and (np.diff(spread) < 0).all()
    assert (0.9 * exact < spread).all() and (spread < 1.2 * exact).all()
    assert (c2st < 0.7).all() and (error < 0.35).all()
    assert (p_value > 0.05).all()
    assert all(row["inside the bands"] in ("9 of 10", "10 of 10") for row in rows)
