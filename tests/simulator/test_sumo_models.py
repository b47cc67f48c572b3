"""SUMO's models as black boxes: exact, keyed by pair, and whole again after a crash or a hang."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch

from asbc.config import build, compose
from asbc.engine import LocalEngine
from asbc.errors import InputError
from asbc.simulator.sumo_batch import TWISTER, load_libsumo, numbers_for, twister
from asbc.utils.random import RowStreams, stream

pytest.importorskip("libsumo", reason="SUMO is not installed: pip install 'asbc[sumo]'")
MODELS = ("krauss", "eidm", "w99", "acc", "idm_action", "idm_box")
NOISY = ("krauss", "w99")
PAIRS, STEPS = 30, 60


def box_of(name: str, **settings):
    """The simulator with few roads, so that several loops are needed."""
    cfg = compose("train", [f"model=sumo_{name}", "model.law.pairs=16"])
    simulator = build(cfg.simulator)
    if settings:
        simulator.law.engine = LocalEngine(**settings)
    return simulator


@pytest.fixture(scope="module")
def boxes():
    """Each model once, with its running SUMO."""
    made: dict = {}

    def get(name):
        return made.setdefault(name, made.get(name) or box_of(name))

    yield get
    for simulator in made.values():
        simulator.law.close()


@pytest.fixture(scope="module")
def drives():
    """Stop-and-go leaders and states behind them, float64."""
    rng = np.random.default_rng(0)
    wave = np.sin(np.arange(STEPS) * 0.12 + 6 * rng.random((PAIRS, 1)))
    leader = np.clip(6 + 7 * wave + np.cumsum(rng.normal(0, 0.1, (PAIRS, STEPS)), 1), 0, None)
    leader = torch.from_numpy(leader)
    return leader, torch.from_numpy(rng.uniform(6, 40, PAIRS)), leader[:, 0].clone()


def keyed(rows) -> RowStreams:
    return RowStreams([stream(0, "pair", int(row)) for row in rows])


def test_sumos_idm_and_our_copy_of_it_drive_alike(boxes, drives):
    theirs, ours = (
        boxes("idm_box"),
        build(compose("train", ["model=sumo_idm", "residual=none"]).simulator),
    )
    theta = theirs.prior.sample(PAIRS, stream(0, "theta")).double()
    in_sumo = theirs.rollout(theta, *drives, stream(0, "noise"), check=False)
    in_torch = ours.rollout(theta, *drives, stream(0, "noise"), check=False)
    for series in ("gap", "speed", "acceleration"):
        difference = (getattr(in_sumo, series) - getattr(in_torch, series)).abs().max()
        assert float(difference) < 1e-6, series
    assert torch.equal(in_sumo.collided, in_torch.collided)
    # The drive is not trivial: some stop, all react.
    assert float(in_sumo.speed.min()) < 0.5 and float(in_sumo.speed.std(1).min()) > 0.5


@pytest.mark.parametrize("name", MODELS)
def test_a_pair_has_its_numbers_whatever_the_batch(boxes, drives, name):
    simulator = boxes(name)
    theta = simulator.prior.sample(PAIRS, stream(0, "theta")).double()
    everything = simulator.rollout(theta, *drives, keyed(range(PAIRS)), check=False).states
    assert everything.isfinite().all()
    rows = [29, 3, 17]
    some = [value[rows] for value in (theta, *drives)]
    assert torch.equal(simulator.rollout(*some, keyed(rows), check=False).states, everything[rows])
    # The first states are the given ones, and leaders drive what they are told.
    assert torch.equal(everything[:, 0, 0], drives[1])
    torch.testing.assert_close(everything[..., 1] - everything[..., 2], drives[0])
    other = simulator.rollout(theta, *drives, keyed(range(100, 100 + PAIRS)), check=False).states
    assert torch.equal(other, everything) != (name in NOISY)


@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_changes_what_is_driven(boxes, drives, name):
    simulator = boxes(name)
    # Half of the leaders drive faster than anybody wants to.
    fast = torch.where(torch.arange(PAIRS)[:, None] % 2 == 0, 32.0, 0.0)
    states = (drives[0] + fast, drives[1] + fast[:, 0], drives[2] + fast[:, 0])
    theta = simulator.prior.sample(PAIRS, stream(1, "theta")).double()
    base = simulator.rollout(theta, *states, keyed(range(PAIRS)), check=False).speed
    for column, parameter in enumerate(simulator.parameter_names):
        changed = theta.clone()
        low, high = simulator.prior.low[column], simulator.prior.high[column]
        changed[:, column] = torch.where(theta[:, column] < (low + high) / 2, high, low)
        speed = simulator.rollout(changed, *states, keyed(range(PAIRS)), check=False).speed
        assert not torch.equal(speed, base), parameter


def test_dawdling_is_what_the_given_numbers_say(boxes):
    """Krauss far behind its leader: v' = v + dt a - dt sigma a U, with our own U."""
    simulator, steps = boxes("krauss"), 20
    driver = {"v0": 40.0, "s0": 2.0, "T": 1.0, "a_max": 2.0, "b": 4.5, "sigma": 0.8}
    theta = torch.tensor([[driver[name] for name in simulator.parameter_names]]).double()
    leader, start = torch.full((1, steps), 20.0).double(), torch.tensor([10.0]).double()
    far = torch.tensor([500.0]).double()
    drive = simulator.rollout(theta, leader, far, start, stream(0, "noise"), check=False)
    numbers = stream(0, "noise").random((1, numbers_for(steps + 1 + 4)))  # one step more is asked
    uniforms = temper((numbers[0] * 2**32).astype(np.uint32)) / 2**32
    change = drive.speed.diff(dim=1)[0].numpy()
    np.testing.assert_allclose(change, 0.2 * 2.0 * (1 - 0.8 * uniforms[: steps - 1]), atol=1e-9)


COUNT = """
import re, numpy as np
from asbc.config import build, compose
from asbc.simulator import sumo_batch as sb
from asbc.utils.random import stream
law = (simulator := build(compose("train", ["model=sumo_{name}"]).simulator)).law
rng = np.random.default_rng(0)
leader = np.clip(8 + 8 * np.sin(np.arange(50) * 0.12 + 6 * rng.random((60, 1))), 0, None)
leader[::3] += 30
types = [
    'length="5" speedDev="0" ' + " ".join(f'{{k}}="{{v}}"' for k, v in law.vtype(row).items())
    for row in simulator.prior.sample(60, stream(0, "theta")).tolist()
]
noise = rng.integers(0, 2**32, (60, sb.TWISTER), dtype=np.uint32)
sumo = sb.SumoBatch(60, 0.2)
sumo.run(sb.Batch(types, leader, rng.uniform(5, 60, 60), leader[:, 0].copy(), noise))
sumo._sumo.simulation.saveState("{file}")
used = re.findall(r'rngLane index="[0-9]+" state="([0-9]+)', open("{file}").read())
print(max(int(count) - sb.COUNTED for count in used) / 49)
"""


@pytest.mark.parametrize("name", NOISY)
def test_a_model_draws_no_more_than_it_is_given(name, tmp_path):
    """Beyond the given numbers a road's generator would be a poor one."""
    code = COUNT.format(name=name, file=tmp_path / "state.xml")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    draws = build(compose("train", [f"model=sumo_{name}"]).model.law).draws
    assert float(done.stdout) == draws


def temper(word: np.ndarray) -> np.ndarray:
    """What a Mersenne twister makes of a word of its state."""
    word = word.astype(np.uint64)
    word ^= word >> 11
    word ^= (word << 7) & 0x9D2C5680
    word ^= (word << 15) & 0xEFC60000
    return (word ^ (word >> 18)) & 0xFFFFFFFF


def test_the_state_of_a_twister_holds_the_numbers_or_all_words():
    few = twister(np.array([7, 8], dtype=np.uint32)).split()
    assert len(few) == TWISTER + 2 and few[-3:] == ["7", "8", str(TWISTER - 2)]
    assert set(few[1:-3]) == {"0"}
    assert numbers_for(0) == 0 and numbers_for(10_000) == TWISTER
    full = twister(np.arange(TWISTER, dtype=np.uint32)).split()
    assert full[-1] == "0" and full[1:4] == ["0", "1", "2"]


def worker_of(simulator) -> int:
    (worker,) = simulator.law._pool._idle
    return worker.process.pid


@pytest.mark.parametrize("blow", ["SIGKILL", "SIGSEGV", "SIGSTOP"])
def test_a_sumo_that_crashes_or_hangs_is_replaced_and_its_pairs_done_again(drives, blow):
    simulator = box_of("krauss", workers=1, time_limit=20.0 if blow == "SIGSTOP" else 120.0)
    theta = simulator.prior.sample(PAIRS, stream(0, "theta")).double()
    before = simulator.rollout(theta, *drives, keyed(range(PAIRS)), check=False)
    old = worker_of(simulator)
    os.kill(old, getattr(signal, blow))
    after = simulator.rollout(theta, *drives, keyed(range(PAIRS)), check=False)
    assert torch.equal(before.states, after.states)
    new = worker_of(simulator)
    assert new != old
    simulator.law.close()
    for process in (old, new):
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


def test_without_the_extra_one_line_says_what_to_install(drives, monkeypatch):
    simulator = box_of("krauss")
    monkeypatch.setitem(sys.modules, "libsumo", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    theta = simulator.prior.sample(PAIRS, stream(0, "theta")).double()
    for ask in (
        load_libsumo,
        lambda: simulator.rollout(theta, *drives, stream(0, "noise"), check=False),
    ):
        with pytest.raises(InputError, match=r"pip install 'asbc\[sumo\]'"):
            ask()


def test_a_time_step_that_sumo_cannot_have_is_refused(drives):
    simulator = box_of("krauss")
    simulator.dt = 1 / 30
    theta = simulator.prior.sample(PAIRS, stream(0, "theta")).double()
    with pytest.raises(InputError, match="milliseconds"):
        simulator.rollout(theta, *drives, stream(0, "noise"), check=False)


def test_a_leader_beyond_the_road_is_refused(boxes):
    simulator = boxes("idm_box")
    theta = simulator.prior.sample(1, stream(0, "theta")).double()
    leader = torch.full((1, 3), 4e5).double()
    start = (torch.tensor([20.0]).double(), torch.tensor([10.0]).double())
    with pytest.raises(InputError, match="drives 320 km"):
        simulator.rollout(theta, leader, *start, stream(0, "noise"), check=False)
