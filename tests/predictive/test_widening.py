"""The widening is exact in draws and density, and the factor is the one that coverage asks for."""

import math

import pytest
import torch

from asbc.data.pairs import Pairs
from asbc.predictive.objective import Predictive
from asbc.predictive.recorded_windows import RecordedWindows
from asbc.predictive.widening import fit_widening, widen
from asbc.simulator import Rollout
from asbc.utils.random import stream


def test_draws_and_density_agree(small_posterior):
    posterior = small_posterior("nsf", "matern").eval()
    states = torch.randn(2, 20, 3, generator=torch.Generator().manual_seed(0)) + 10
    noise = torch.randn(2, 50, 7, generator=torch.Generator().manual_seed(1))
    plain = posterior.draw(noise, states)
    before = posterior.log_prob(plain, states)
    widen(posterior, 1.25)
    wide = posterior._from_noise(noise, posterior.encode(states))
    sigma = posterior.prior.names.index("sigma")
    torch.testing.assert_close(wide[..., sigma], 1.25 * plain[..., sigma])
    others = [i for i in range(7) if i != sigma]
    assert torch.equal(wide[..., others], plain[..., others])
    after = posterior.log_prob(wide, states)
    torch.testing.assert_close(after, before - math.log(1.25), rtol=1e-3, atol=1e-3)
    drawn = posterior.sample(states, 200, stream(0, "x")).theta
    assert bool(posterior.prior.contains(drawn).all())


def test_the_factor_is_the_nearest_to_the_level(small_posterior):
    posterior = small_posterior("maf", "gaussian")
    sigma = posterior.prior.names.index("sigma")

    def coverage(q):
        return torch.full((3,), 0.90 + 0.25 * (float(q.widening[sigma]) - 1))

    factor, held = fit_widening(posterior, coverage)
    assert factor == 1.2 and torch.allclose(held, torch.tensor(0.95))
    assert float(posterior.widening[sigma]) == torch.tensor(1.2).item()
    assert fit_widening(posterior, lambda q: coverage(q) + 0.06)[0] == 1.0  # never narrower


def test_weights_from_before_have_no_widening(small_posterior):
    posterior = small_posterior("maf", "gaussian")
    old = {k: v for k, v in posterior.state_dict().items() if k != "widening"}
    widen(posterior, 1.3)
    posterior.load_state_dict(old)
    assert torch.equal(posterior.widening, torch.ones(6))


def test_gaps_are_covered_as_they_are_recorded(simulators):
    """Drivers who stand while their recorded gaps jitter: no draw of theta could do that."""
    simulator, generator = simulators["gaussian"], torch.Generator().manual_seed(0)
    gap = 5 + 0.1 * torch.randn(40, 60, generator=generator)
    still = torch.zeros(40, 60)
    pairs = Pairs.from_series(gap, still, still, simulator.dt)
    objective = Predictive(horizon=12)
    grid = RecordedWindows(pairs, 40, 12, 5, "validation").grid("latest", 10, 5)

    def predict(examples, draws, seed):
        start = examples.pairs.gap.view(len(examples), -1)[:, 5, None, None]
        series = start.expand(-1, draws, 13)
        nothing = torch.zeros_like(series)
        return Rollout(series, nothing, nothing, nothing, nothing[..., 0].bool())

    score, held = objective.check(predict, simulator, [grid], 400)
    assert 0.90 < float(held[0]) < 0.99 and torch.equal(held[1:], torch.ones(2))
    # The error of the start and of each step, and predictions with errors of that law: the score
    # is half the distance of two of its draws.
    error = 0.1 * (torch.randn(2, 4000, 12) + torch.randn(2, 4000, 1))
    expected = float((error[0] - error[1]).norm(dim=-1).mean()) / 2
    assert float(score[0]) == pytest.approx(expected, rel=0.15)
