"""The posterior in physical space: densities, samples, support, batches."""

import math
import subprocess
import sys

import numpy as np
import pytest
import torch

from asbc.errors import InputError
from asbc.posterior.gradual import GradualDraws
from asbc.posterior.redraw import redraw
from asbc.utils.random import standard_normal, stream

both_transforms = pytest.mark.parametrize("transform", ["softplus", "bounded"])
both_flows = pytest.mark.parametrize("flow", ["maf", "nsf"])


def trajectories(n: int, steps: int = 20) -> torch.Tensor:
    return torch.randn(n, steps, 3, generator=torch.Generator().manual_seed(0))


@both_flows
@both_transforms
def test_physical_density_integrates_to_one(make_estimator, box_prior, flow, transform):
    posterior = make_estimator(box_prior([0.5, 1.0], [2.0, 5.0]), flow, transform).posterior
    states = trajectories(2)
    # Cells of physical parameters, narrow where the density is; no Jacobian is used here.
    u = torch.linspace(-5, 5, 301)[:, None] * posterior.u_std + posterior.u_mean
    edges = posterior.transform(u)
    theta = torch.cartesian_prod(*(0.5 * (edges[1:] + edges[:-1])).T)
    area = torch.cartesian_prod(*edges.double().diff(dim=0).T).prod(-1)
    mass = (posterior.log_prob_grid(theta, states).double().exp() * area).sum(1)
    torch.testing.assert_close(mass, torch.ones(2, dtype=torch.float64), rtol=0, atol=0.01)


@both_flows
@both_transforms
def test_samples_follow_the_density(make_estimator, box_prior, flow, transform):
    """Kolmogorov distance of 1-D samples from the integrated, truncated density."""
    prior = box_prior([0.5], [2.0])
    posterior = make_estimator(prior, flow, transform).posterior
    states, n = trajectories(1), 20_000
    draws = posterior.sample(states, n, stream(0, "draws")).theta[0, :, 0].sort().values
    grid = torch.linspace(0.5, 2.0, 20_001)
    inner = grid[1:-1]
    density = posterior.log_prob_grid(inner[:, None], states)[0].double().exp()
    cdf = torch.cumulative_trapezoid(density, inner.double())
    empirical = torch.searchsorted(draws.double(), inner[1:].double()) / n
    # 1.95 / sqrt(n): the 0.1% point of the Kolmogorov distribution.
    assert float((cdf / cdf[-1] - empirical).abs().max()) < 1.95 / math.sqrt(n)


@both_transforms
def test_samples_stay_in_the_support_and_the_leak_is_reported(
    make_estimator, box_prior, transform
):
    prior = box_prior([0.5, 1.0], [2.0, 5.0])
    posterior = make_estimator(prior, "maf", transform).posterior
    states = trajectories(30)
    samples = posterior.sample(states, 400, stream(0, "a"))
    assert bool(prior.contains(samples.theta).all())
    noise = torch.from_numpy(stream(0, "a").standard_normal((30, 400, 2), dtype=np.float32))
    first = posterior._from_noise(noise, posterior.encode(states))
    kept = prior.contains(first)
    torch.testing.assert_close(samples.leak_rate, 1 - kept.float().mean(1))
    torch.testing.assert_close(samples.theta[kept], first[kept])
    leaks = bool(samples.leak_rate.max() > 0)
    assert leaks == (transform == "softplus")


def test_draws_do_not_depend_on_later_trajectories(make_estimator, box_prior):
    posterior = make_estimator(box_prior([0.5, 1.0], [2.0, 5.0]), "maf", "softplus").posterior
    states = trajectories(12)
    many = posterior.sample(states, 50, stream(0, "a"))
    few = posterior.sample(states[:5], 50, stream(0, "a"))
    assert float(few.leak_rate.max()) > 0
    torch.testing.assert_close(many.theta[:5], few.theta, rtol=1e-4, atol=1e-4)


@both_flows
@both_transforms
def test_gradual_draws_are_those_at_once(make_estimator, box_prior, flow, transform):
    posterior = make_estimator(box_prior([0.5, 1.0, 0.1], [2.0, 5.0, 0.9]), flow, transform)
    posterior = posterior.posterior
    context = posterior.encode(trajectories(3))
    whole = posterior.sample_context(context, 60, stream(0, "a"))
    for portions in range(posterior.flow.layers + 1):
        draws = GradualDraws(posterior, context, 60, stream(0, "a"))
        for _ in range(portions):
            draws.go_on()
        assert draws.over == (portions == posterior.flow.layers)
        found = draws.samples()
        assert torch.equal(found.theta, whole.theta)
        assert torch.equal(found.leak_rate, whole.leak_rate)


def test_redraws_are_bounded_and_fall_back_in_the_open(box_prior):
    prior = box_prior([0.0], [1.0])
    calls = []

    def from_noise(noise, context):
        """Context 0 never hits the support, context 1 always does."""
        calls.append(len(noise))
        return torch.where(context[:, None] > 0, 0.5, 7.0).expand(-1, noise.shape[1], 1).clone()

    theta = torch.tensor([[0.2, 9.0, 0.3, 9.0], [9.0, 9.0, 9.0, 9.0], [9.0, 0.1, 0.1, 0.1]])
    theta, context = theta[..., None], torch.tensor([[0.0], [0.0], [1.0]])
    outside = ~prior.contains(theta)
    redraw(theta, outside, context, from_noise, prior.contains, prior, stream(0, "r"), max_tries=6)
    assert calls == [7, 6, 6, 6, 6, 6]
    assert bool(prior.contains(theta).all())
    # Row 0 repeats its own accepted draws; row 1 has none and shows the prior; row 2 was redrawn.
    assert set(theta[0].flatten().tolist()) <= set(torch.tensor([0.2, 0.3]).tolist())
    assert len(set(theta[1].flatten().tolist())) == 4
    assert theta[2].flatten().tolist() == pytest.approx([0.5, 0.1, 0.1, 0.1])


def test_draws_that_overflow_are_leaks_and_are_redrawn(make_estimator, box_prior):
    """A u of 1e4 gives the end of the box, where the flow's density is not that of the draw."""
    prior = box_prior([0.5, 1.0], [2.0, 5.0])
    posterior = make_estimator(prior).posterior
    wide = posterior.u_std * torch.tensor([1e4, 1.0])
    posterior.u_std.copy_(wide)
    samples = posterior.sample(trajectories(3), 400, stream(0, "wide"))
    assert float(samples.leak_rate.min()) > 0.9
    at_an_end = (samples.theta == prior.low) | (samples.theta == prior.high)
    assert not bool(at_an_end.any())
    # What is left has the density that log_prob gives, up to the mass that was redrawn.
    u = posterior.transform.inverse(samples.theta)
    torch.testing.assert_close(posterior.transform(u), samples.theta, rtol=1e-4, atol=1e-4)


def test_one_row_many_rows_and_grids_agree(make_estimator, box_prior):
    prior = box_prior([0.5, 1.0, 2.0], [2.0, 5.0, 3.0])
    posterior = make_estimator(prior, "maf", "softplus").posterior
    states, theta = trajectories(6), prior.sample(6, stream(0, "t"))
    rows = posterior.log_prob(theta, states)
    grid = posterior.log_prob_grid(theta, states)
    many = posterior.log_prob(theta.expand(6, -1, -1), states)
    torch.testing.assert_close(grid.diagonal(), rows, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(many, grid, rtol=1e-5, atol=1e-5)


def test_density_is_zero_outside_the_transforms_range(make_estimator, box_prior):
    posterior = make_estimator(box_prior([0.5, 1.0], [2.0, 5.0])).posterior
    theta = torch.tensor([[1.0, 6.0], [1.0, 3.0]])
    assert posterior.log_prob(theta, trajectories(2)).isinf().tolist() == [True, False]


def test_padding_and_lengths(make_estimator, box_prior):
    prior = box_prior([0.5, 1.0], [2.0, 5.0])
    posterior = make_estimator(prior).posterior
    states, theta = trajectories(3, steps=15), prior.sample(3, stream(0, "t"))
    padded = torch.cat([states, torch.full((3, 5, 3), torch.nan)], 1)
    lengths = torch.full((3,), 15)
    alone, together = (
        posterior.log_prob(theta, states),
        posterior.log_prob(theta, padded, lengths),
    )
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-5)


def test_standardisation(make_estimator, box_prior):
    prior = box_prior([0.5, 1.0], [2.0, 5.0])
    posterior = make_estimator(prior).posterior
    states = trajectories(200) * torch.tensor([5.0, 2.0, 0.0]) + torch.tensor([30.0, -1.0, 4.0])
    posterior.set_scaling(prior.sample(200, stream(0, "scaling")), states)
    torch.testing.assert_close(posterior.input_mean, states.mean((0, 1)), rtol=1e-4, atol=1e-3)
    flat = states.reshape(-1, 3)
    torch.testing.assert_close(posterior.input_std[:2], flat.std(0)[:2], rtol=1e-4, atol=1e-4)
    assert float(posterior.input_std[2]) == 1  # constant: no scale of its own
    u = posterior.transform.inverse(prior.sample(100_000, stream(0, "u")))
    torch.testing.assert_close(posterior.u_mean, u.mean(0), rtol=0, atol=0.03)
    torch.testing.assert_close(posterior.u_std, u.std(0), rtol=0.02, atol=0)


def test_targets_that_spread_farther_than_the_prior_set_their_own_scale(make_estimator, box_prior):
    """A known normal law in u comes out standard; bounds, where u has none, do not count."""
    prior = box_prior([0.5, 1.0], [2.0, 5.0])
    posterior = make_estimator(prior, "nsf", "bounded").posterior
    mean, std = posterior.u_mean.clone(), posterior.u_std.clone()
    normal = standard_normal(stream(0, "wide"), 20_000, 2)
    theta = posterior.transform(mean + 0.7 + 1.5 * std * normal)
    theta[:20] = prior.high
    posterior.set_target_scaling(theta)
    torch.testing.assert_close(posterior.u_std, 1.5 * std, rtol=0.03, atol=0)
    torch.testing.assert_close(posterior.u_mean, mean + 0.7, rtol=0, atol=0.05)


def test_wrong_shapes_are_named(make_estimator, box_prior):
    posterior = make_estimator(box_prior([0.5, 1.0], [2.0, 5.0])).posterior
    with pytest.raises(InputError, match=r"theta has shape \(3, 2\), expected \(4, 2\)"):
        posterior.log_prob(torch.ones(3, 2), trajectories(4))
    with pytest.raises(InputError, match=r"theta has shape \(3, 3\), expected \(\*, 2\)"):
        posterior.log_prob_grid(torch.ones(3, 3), trajectories(4))
    with pytest.raises(InputError, match=r"states\[0, 0, 1\] is nan"):
        posterior.set_scaling(torch.ones(1, 2), torch.tensor([[[0.0, torch.nan, 0.0]]]))


def test_plain_calls_are_refused(make_estimator, box_prior):
    estimator = make_estimator(box_prior([0.5, 1.0], [2.0, 5.0]))
    with pytest.raises(TypeError, match=r"member\(key\)"):
        estimator(trajectories(1))
    with pytest.raises(TypeError, match="training_log_prob"):
        estimator.posterior(trajectories(1))


LARGE_BATCH = """
import resource, sys, torch
from pathlib import Path
from functools import partial
from asbc.posterior.encoder import LocalGlobalEncoder
from asbc.posterior.estimator import PosteriorEstimator
from asbc.posterior.flow import MaskedAutoregressiveFlow
from asbc.posterior.transform import Softplus
from asbc.utils.random import stream

class Prior:
    names, dim = tuple("abcdef"), 6
    def icdf(self, u): return 0.5 + u
    def contains(self, theta): return ((theta > 0.4) & (theta < 1.6)).all(-1)

torch.manual_seed(0)
estimator = PosteriorEstimator(LocalGlobalEncoder(), MaskedAutoregressiveFlow, Softplus(), Prior())
samples = estimator.posterior.sample(torch.randn(1000, 75, 3), 500, stream(0, "large"))
assert samples.theta.shape == (1000, 500, 6) and bool(Prior().contains(samples.theta).all())
assert float(samples.leak_rate.mean()) > 0.1  # redraws take part
if sys.platform == "linux":
    # Not ru_maxrss: across fork and exec that includes the size of whoever started the process.
    status = Path("/proc/self/status").read_text()
    print(1024 * int(status.partition("VmHWM:")[2].split()[0]))
else:
    unit = 1 if sys.platform == "darwin" else 1024
    print(unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def test_a_thousand_drivers_in_one_call_within_two_gigabytes():
    result = subprocess.run(
        [sys.executable, "-c", LARGE_BATCH], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) < 1e9  # the limit is 2 GB; half of it leaves room for other builds
