"""What the page computes is what Python computes, in a real browser."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from asbc.config import CONF, build, compose
from asbc.data.grouped_pairs import group_by_driver
from asbc.data.history import driver_places, histories
from asbc.errors import InputError
from asbc.page.description import (
    describe,
    describe_network,
    describe_simulator,
    encode_tensors,
    network_tensors,
)
from asbc.run import Run
from asbc.shipped import names
from asbc.simulator import state_space
from asbc.simulator.prior import Prior
from asbc.simulator.residuals import Prefix

DRAWS, TOLERANCE = 40, 1e-4

INFER = """
const tensors = await readTensors(model.tensors, text);
const posterior = new Posterior(model, tensors);
const flat = ({ states, length, age }) =>
  ({ states: Float64Array.from(states), length, age: age ?? NaN });
const contexts = segments.map((some) => posterior.context(some.map(flat)));
const theta = contexts.map((c, i) => [...posterior.fromNoise(Float64Array.from(noise[i]), c)]);
const novelty = model.novelty ? new Novelty(model.novelty, tensors) : null;
return {
  contexts: contexts.map((c) => [...c]),
  theta,
  novelty: novelty && contexts.map((c) => novelty.distance(c)),
};
"""


def as_lists(segments):
    """Segments of drivers as the page takes them."""
    return [
        [
            {
                "states": segments.states[i, j, :length].flatten().tolist(),
                "length": length,
                "age": None if segments.age[i, j].isnan() else float(segments.age[i, j]),
            }
            for j, length in enumerate(segments.lengths[i].tolist())
            if length
        ]
        for i in range(len(segments))
    ]


def single(states):
    """One segment per driver, as the page takes them."""
    length = states.shape[1]
    return [[{"states": s.flatten().tolist(), "length": length, "age": 0.0}] for s in states]


def compare(found, posterior, states, noise):
    """Contexts and draws of the page against those of Python."""
    context = posterior.encode(states)
    theta = posterior._from_noise(noise, context)
    np.testing.assert_allclose(found["contexts"], context, atol=TOLERANCE, rtol=TOLERANCE)
    drawn = np.reshape(found["theta"], theta.shape)
    np.testing.assert_allclose(drawn, theta, atol=TOLERANCE, rtol=TOLERANCE)
    return context


@pytest.mark.parametrize("name", names())
def test_a_shipped_model_gives_the_same_contexts_draws_and_novelty(name, run_js, recordings):
    run = Run.open(name)
    steps = run.config["data"]["context_steps"]
    model, tensors = describe(run)
    states = recordings.contexts(steps)
    noise = torch.randn(len(states), DRAWS, len(model["prior"]), generator=torch.manual_seed(1))
    given = {"noise": noise.flatten(1).tolist(), "segments": single(states)}
    found = run_js(INFER, model=model | {"tensors": tensors.listed}, text=tensors.text, **given)
    context = compare(found, run.posterior, states, noise)
    expected = run.novelty(steps).distance(context)
    np.testing.assert_allclose(found["novelty"], expected, rtol=TOLERANCE)


def choices(group):
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


def untrained(*overrides):
    """A posterior with random weights that do something, and scales of the recordings."""
    torch.manual_seed(0)
    small = ["encoder.model_dim=16", "encoder.layers=3", "flow.hidden=20", "flow.layers=3"]
    posterior = build(compose("train", [*small, *overrides]).estimator).posterior.eval()
    with torch.no_grad():
        for parameter in posterior.parameters():
            parameter += 0.15 * torch.randn_like(parameter)
    return posterior


def page_model(posterior):
    tensors = encode_tensors(network_tensors(posterior))
    prior = [vars(marginal) for marginal in posterior.prior.marginals]
    network = describe_network(posterior)
    model = {**network, "prior": prior, "novelty": None, "tensors": tensors.listed}
    return model, tensors.text


CASES = [
    *([f"flow={flow}", "transform=bounded", "residual=matern"] for flow in choices("flow")),
    *(["residual=matern", f"transform={t}"] for t in choices("transform") if t != "laplace"),
    *([f"encoder={encoder}", "transform=bounded", "flow=nsf"] for encoder in choices("encoder")),
]


@pytest.mark.parametrize("overrides", CASES, ids=",".join)
def test_any_flow_transform_and_encoder_gives_the_same_draws(overrides, run_js, recordings):
    posterior = untrained(*overrides)
    states = recordings.contexts(60)
    posterior._set_input_scaling(states)
    noise = torch.randn(len(states), DRAWS, posterior.prior.dim, generator=torch.manual_seed(2))
    model, text = page_model(posterior)
    given = {"noise": noise.flatten(1).tolist(), "segments": single(states)}
    compare(run_js(INFER, model=model, text=text, **given), posterior, states, noise)


def test_several_segments_of_any_length_give_the_same_draws(run_js, recordings):
    posterior = untrained("history=segments", "transform=bounded", "encoder=differences")
    posterior._set_input_scaling(recordings.contexts(60))
    ends = [15, 40, 75, 76, 90, 150, 200, 224]
    pairs = list(range(len(ends)))
    pool = posterior.pool
    segments = histories(
        recordings, pairs, ends, pool.context_steps, pool.shortest, pool.max_segments
    )
    segments.age[5, 1:] = torch.nan  # of an earlier drive
    noise = torch.randn(len(ends), DRAWS, posterior.prior.dim, generator=torch.manual_seed(3))
    model, text = page_model(posterior)
    given = {"noise": noise.flatten(1).tolist(), "segments": as_lists(segments)}
    compare(run_js(INFER, model=model, text=text, **given), posterior, segments, noise)


SEGMENTS = """
const asArrays = (pair) => {
  const series = ["gap", "speed", "leader"].map((name) => [name, Float64Array.from(pair[name])]);
  return { ...pair, ...Object.fromEntries(series) };
};
const { drivers, short } = makeDrivers(pairs.map(asArrays), pool, 0.2);
const found = drivers.map((driver) => segmentsOf(driver, { pool }, 0.2));
const plain = (own) => own.map((s) => ({ ...s, pair: s.pair.id, states: [...s.states] }));
return { ids: drivers.map((d) => d.id), segments: found.map(plain), short: [...short] };
"""


def page_pairs(pairs):
    """Pairs as the page keeps them."""
    for i, name in enumerate(pairs.pair_id):
        own = pairs.pair(i)
        series = {"gap": own["gap"], "speed": own["speed"], "leader": own["leader_speed"]}
        yield {
            "id": name,
            "follower": pairs.follower[i],
            "recording": pairs.recording[i],
            "start": float(pairs.begin[i]),
            **{key: values.tolist() for key, values in series.items()},
        }


@pytest.mark.parametrize("clock", [True, False])
def test_drivers_with_several_pairs_have_the_segments_of_the_command(clock, run_js, recordings):
    """Order, lengths and ages, where times are of one clock and where they cannot be."""
    some = recordings.select([0, 1, 2, 3, 4, 5])
    followers = ("sim/b", "sim/a", "sim/b", "sim/a", "sim/b", "sim/c")
    names = ("sim/b-10", "sim/a-1", "sim/b-2", "sim/a-3", "sim/b-1", "sim/c")
    begin = torch.tensor([500.0, 0.0, 100.0, 80.0, 900.0, 3.0], dtype=torch.float64)
    pairs = replace(
        some, follower=followers, pair_id=names, recording=("sim",) * 6,
        begin=begin if clock else torch.zeros(6, dtype=torch.float64),
    )  # fmt: skip
    pairs, _ = group_by_driver(pairs, 15)
    places = driver_places(pairs, 75, 15, 8)
    expected = places.segments(pairs, 75)
    pool = {"steps": 75, "shortest": 15, "max_segments": 8}
    found = run_js(SEGMENTS, pairs=list(page_pairs(pairs)), pool=pool)
    assert found["ids"] == ["sim/a", "sim/b", "sim/c"] == list(dict.fromkeys(pairs.follower))
    for own, theirs in zip(found["segments"], as_lists(expected), strict=True):
        assert [s["length"] for s in own] == [s["length"] for s in theirs]
        ages = [[np.nan if s["age"] is None else s["age"] for s in side] for side in (own, theirs)]
        np.testing.assert_allclose(*ages, atol=1e-4)
        for mine, other in zip(own, theirs, strict=True):
            np.testing.assert_allclose(mine["states"], other["states"], rtol=1e-6)


def test_a_driver_with_too_little_is_named_as_by_the_command(run_js, recordings):
    pairs, bad = group_by_driver(recordings.select([0, 1]), 1000)
    assert not len(pairs)
    given = list(page_pairs(recordings.select([0, 1])))
    pool = {"steps": 2000, "shortest": 1000, "max_segments": 8}
    found = run_js(SEGMENTS, pairs=given, pool=pool)
    assert dict(found["short"]) == bad and found["ids"] == []


def test_a_past_is_cut_into_the_same_segments(run_js):
    from asbc.data.history import cut

    ends = list(range(1, 240, 7))
    found = run_js("return ends.map((end) => cutSegments(end, 75, 15));", ends=ends)
    assert found == [[list(piece) for piece in cut(end, 75, 15)] for end in ends]


def test_what_a_page_cannot_do_is_refused_in_one_line():
    posterior = untrained("transform=laplace", "encoder=actions", "residual=matern")
    with pytest.raises(InputError, match="transform Laplace is not known in a browser; use a run"):
        describe_network(posterior)
    forward, why = describe_simulator(Run.open("sumo_krauss").simulator)
    assert forward is None and why.endswith("predictions need SUMO.")


def test_the_normal_distribution_is_exact_to_the_last_digits(run_js):
    from scipy import special

    x = np.linspace(-9, 9, 501)
    p = np.concatenate([10.0 ** -np.arange(1, 300, 13), np.linspace(0.001, 0.999, 200)])
    found = run_js(
        "return { erf: x.map(erf), cdf: x.map(normalCdf), quantile: p.map(normalQuantile) };",
        x=x.tolist(), p=p.tolist(),
    )  # fmt: skip
    np.testing.assert_allclose(found["erf"], special.erf(x), rtol=1e-14, atol=1e-300)
    np.testing.assert_allclose(found["cdf"], special.ndtr(x), rtol=2e-14)
    np.testing.assert_allclose(found["quantile"], special.ndtri(p), rtol=1e-13, atol=1e-15)


def test_the_prior_is_the_same(run_js, simulators):
    prior: Prior = simulators["matern"].prior
    u = torch.linspace(0.01, 0.99, 9).double()
    expected = prior.icdf(u[:, None].expand(-1, prior.dim)).numpy()
    found = run_js(
        "const prior = new Prior(marginals);"
        "return u.map((share) => marginals.map((_, i) => prior.quantile(i, share)));",
        marginals=[vars(m) for m in prior.marginals], u=u.tolist(),
    )  # fmt: skip
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    density = run_js(
        "const prior = new Prior(marginals);"
        "const log = (row) => row.reduce((sum, v, i) => sum + Math.log(prior.density(i, v)), 0);"
        "return theta.map(log);",
        marginals=[vars(m) for m in prior.marginals], theta=expected.tolist(),
    )  # fmt: skip
    np.testing.assert_allclose(density, prior.log_prob(torch.from_numpy(expected)), rtol=1e-5)


def test_random_numbers_depend_on_their_key_only_and_are_normal(run_js):
    from scipy import stats

    found = run_js(
        "const draw = (seed, id) => [...new RandomStream(seed, 'posterior', id).normals(20000)];"
        "return [draw(0, 'r/1'), draw(0, 'r/1'), draw(0, 'r/2'), draw(1, 'r/1')];"
    )
    first, again, other, seeded = map(np.array, found)
    assert np.array_equal(first, again)
    # Written down: a page of another day or machine draws the same.
    np.testing.assert_allclose(first[:3], FIRST_NORMALS, rtol=1e-12)
    for values in (first, other, seeded):
        assert stats.kstest(values, "norm").pvalue > 1e-3
        assert abs(np.corrcoef(values[1:], values[:-1])[0, 1]) < 0.03
    for values in (other, seeded):
        assert abs(np.corrcoef(first, values)[0, 1]) < 0.03


FIRST_NORMALS = [-0.3571348307350196, 0.6146771186451739, -1.7930810552649648]


class GivenResidual:
    """A residual process that repeats what it is given."""

    def __init__(self, like, values):
        self.parameters, self.values = like.parameters, values

    def sample(self, hyper, steps, dt, rng, prefix=None):
        return self.values


@pytest.mark.parametrize("model", ["idm", "idm_leader_acceleration", "fvd", "sumo_idm"])
def test_a_drive_with_given_residuals_is_the_same(model, run_js):
    simulator = build(compose("train", [f"model={model}", "residual=gaussian"]).simulator)
    rng = np.random.default_rng(0)
    theta = simulator.prior.sample(20, rng)
    time = torch.arange(80) * 0.2
    leader = (10 + 8 * torch.sin(time / 4 + torch.arange(20)[:, None])).clamp_min(0).float()
    residuals = torch.from_numpy(rng.normal(0, 0.4, leader.shape)).float()
    described, _ = describe_simulator(simulator)
    found = run_js(
        "const simulator = new Simulator(settings);"
        "return theta.map((own, i) => {"
        "  const drive = simulator.rollout(own, leader[i], 15, 8, (t) => residuals[i][t]);"
        "  return [[...drive.gap], [...drive.speed], [...drive.acceleration]]; });",
        settings=described, theta=theta.tolist(), leader=leader.tolist(),
        residuals=residuals.tolist(),
    )  # fmt: skip
    simulator.residual = GivenResidual(simulator.residual, residuals)
    start = torch.ones(20)
    drive = simulator.rollout(theta, leader, 15 * start, 8 * start, rng)
    expected = torch.stack([drive.gap, drive.speed, drive.acceleration], dim=1)
    np.testing.assert_allclose(found, expected, atol=2e-3, rtol=2e-3)
    assert np.median(np.abs(np.array(found) - expected.numpy())) < 1e-5


def test_the_matern_process_continues_residuals_as_in_python(run_js, simulators):
    process = simulators["matern"].residual
    sigma, ell, observed = [0.3, 0.8, 0.1], [0.5, 3.0, 15.0], [0.2, 0.25, 0.1, -0.1, 0.05]
    found = run_js(
        "return ell.map((length, i) => {"
        "  const prefix = { residuals, noise: 0.01 };"
        "  const process = new MaternResidual({ nugget }, [sigma[i], length], 0.2, prefix);"
        "  return { ...process.step, ...process.start }; });",
        ell=ell, sigma=sigma, residuals=observed, nugget=process.nugget,
    )  # fmt: skip
    lengths, sizes = torch.tensor([ell, sigma], dtype=torch.float64)
    step = state_space.transition(lengths, 0.2)
    values = torch.tensor([observed] * 3, dtype=torch.float64)
    prefix = Prefix(values, torch.ones_like(values, dtype=torch.bool), 0.01)
    belief = process._filter(state_space.stationary(lengths), step, prefix, sizes)
    for i, own in enumerate(found):
        np.testing.assert_allclose(own["matrix"], step.matrix[..., i], rtol=1e-12)
        np.testing.assert_allclose(own["noise"], step.noise[..., i], rtol=1e-9)
        np.testing.assert_allclose(own["mean"], belief.mean[:, i], rtol=1e-9, atol=1e-12)
        covariance = belief.covariance[..., i]
        np.testing.assert_allclose(own["covariance"], covariance, rtol=1e-8, atol=1e-12)


def test_residuals_have_the_kernel_that_they_should(run_js):
    """By many draws: the covariance of a Matern-5/2 process with white noise, in closed form."""
    sigma, ell, nugget = 0.7, 1.5, 1e-3
    found = np.array(run_js(
        "const random = new RandomStream('kernel');"
        "return Array.from({ length: 6000 }, () => {"
        "  const process = new MaternResidual({ nugget }, [sigma, ell], 0.2);"
        "  return Array.from({ length: 12 }, () => process.next(random)); });",
        sigma=sigma, ell=ell, nugget=nugget,
    ))  # fmt: skip
    distance = np.sqrt(5) * 0.2 * np.abs(np.subtract.outer(np.arange(12), np.arange(12))) / ell
    kernel = (1 + distance + distance**2 / 3) * np.exp(-distance) + nugget * np.eye(12)
    np.testing.assert_allclose(np.cov(found.T) / sigma**2, kernel, atol=0.09)
