"""The leader bank: what is in it, what its features are, how it is sampled."""

import logging
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf

from asbc.data.pairs import Pairs
from asbc.data.pairs_file import PairsFile
from asbc.data.windows import leader_windows
from asbc.design.augment import Augmentation, Plausibility
from asbc.design.bank import LeaderBank
from asbc.errors import InputError

DT = 0.2


def stop_and_go_pairs(count: int = 40, samples: int = 300) -> Pairs:
    """Leaders that swing between 0 and 12 m/s, some standing still for a while."""
    rng = np.random.default_rng(7)
    t = np.arange(samples) * DT
    phase, period = rng.uniform(0, 6, (count, 1)), rng.uniform(25, 50, (count, 1))
    leader = 6 + 7 * np.sin(2 * np.pi * t / period + phase)
    leader = np.clip(leader + 0.3 * np.sin(t + phase), 0, None).astype(np.float32).ravel()
    names = tuple(f"r/{i}" for i in range(count))
    flat = torch.from_numpy(leader)
    return Pairs(
        pair_id=names,
        follower=names,
        recording=("r",) * count,
        follower_class=("car",) * count,
        dt=DT,
        offsets=torch.arange(count + 1) * samples,
        gap=10 + flat,
        speed=flat * 0.9,
        leader_speed=flat,
        acceleration=torch.zeros_like(flat),
    )


@pytest.fixture(scope="module")
def pairs() -> Pairs:
    return stop_and_go_pairs()


@pytest.fixture(scope="module")
def bank(pairs) -> LeaderBank:
    return LeaderBank(pairs, steps=75, synthetic_cap=3000)


def check_filters(synthetic: np.ndarray, real: np.ndarray) -> None:
    """The five plausibility checks, sample by sample, as the appendix writes them."""
    a_real = np.empty_like(real)
    a_real[:, 1:] = (real[:, 1:] - real[:, :-1]) / DT
    a_real[:, 0] = a_real[:, 1]
    v_low, v_high = np.percentile(real, [1, 99])
    a_low, a_high = np.percentile(a_real, [1, 99])
    for v in synthetic:
        a = [(v[t] - v[t - 1]) / DT for t in range(1, len(v))]
        a = [a[0], *a]
        for t in range(len(v)):
            assert v[t] >= 0
            assert abs(a[t]) <= 10.0
            assert v_low <= v[t] <= v_high and a_low <= a[t] <= a_high
            if t:
                assert abs(a[t] - a[t - 1]) / DT <= 20.0
                assert abs(v[t] - v[t - 1] - a[t] * DT) <= 0.5


def test_every_synthetic_window_passes_every_filter(bank):
    real = bank.real.leader_speed.double().numpy()
    check_filters(bank.synthetic.leader_speed.double().numpy(), real)


def test_windows_are_real_then_synthetic(bank, pairs):
    cut = leader_windows(pairs, 75, 50)
    assert len(bank.synthetic.gap) == 3000
    assert len(bank) == len(cut.gap) + 3000 == len(bank.windows.gap)
    assert torch.equal(bank.windows.leader_speed[: len(cut.gap)], cut.leader_speed)
    ids = torch.arange(len(bank))
    assert bank.is_synthetic(ids).sum() == 3000
    assert not bank.is_synthetic(ids[: len(cut.gap)]).any()


def test_synthetic_windows_keep_their_source_state_and_shape(bank, pairs):
    rows = pairs.offsets[bank.synthetic.pair] + bank.synthetic.start
    assert torch.equal(bank.synthetic.gap, pairs.gap[rows])
    assert torch.equal(bank.synthetic.speed, pairs.speed[rows])
    source = pairs.leader_speed[rows[:, None] + torch.arange(75)]
    change = bank.synthetic.leader_speed - source
    assert (change.abs().amax(dim=1) > 0.01).all()  # no copies
    assert change.abs().mean() < 0.6  # lightweight: the overall shape stays


def test_windows_that_stand_still_are_augmented_too(bank):
    assert (bank.synthetic.leader_speed.amin(dim=1) == 0).sum() > 50


def test_leaders_that_stand_throughout_are_not_copied():
    """Rescaling and warping leave them as they are, and noise leads below zero."""
    moving = stop_and_go_pairs(4)
    standing = replace(moving, leader_speed=moving.leader_speed * (moving.offsets[1] < 0))
    both = replace(moving, leader_speed=moving.leader_speed.clone())
    both.leader_speed[:600] = 0.0
    bank = LeaderBank(both, steps=75, synthetic_cap=500)
    assert len(bank.synthetic.gap) == 500
    assert not bool((bank.synthetic.leader_speed.amax(dim=1) < 0.01).any())
    assert LeaderBank(standing, steps=75, synthetic_cap=20).rejected["no copy"] > 0


def test_bank_is_a_function_of_its_seed(pairs, bank):
    again = LeaderBank(pairs, steps=75, synthetic_cap=3000)
    other = LeaderBank(pairs, steps=75, synthetic_cap=3000, seed=1)
    fewer = LeaderBank(pairs, steps=75, synthetic_cap=500)
    assert torch.equal(again.synthetic.leader_speed, bank.synthetic.leader_speed)
    assert not torch.equal(other.synthetic.leader_speed, bank.synthetic.leader_speed)
    assert torch.equal(fewer.synthetic.leader_speed, bank.synthetic.leader_speed[:500])


def test_features_match_their_definition(bank):
    raw = []
    for v in bank.real.leader_speed.double().numpy():
        a = np.diff(v) / DT
        a = np.concatenate([a[:1], a])
        stats = [f(s) for s in (v, a) for f in (np.mean, np.std, np.min, np.max)]
        raw.append([*stats, np.abs(np.diff(v)).mean(), np.abs(np.diff(a)).mean()])
    raw = np.array(raw)
    expected = (raw - raw.mean(axis=0)) / raw.std(axis=0)
    np.testing.assert_allclose(bank.features(bank.real), expected, atol=2e-3)
    np.testing.assert_allclose(bank.window_features[: len(raw)], expected, atol=2e-3)
    assert bank.window_features.shape == (len(bank), 10)


def test_constant_leaders_have_finite_features(pairs):
    still = replace(pairs, leader_speed=torch.full_like(pairs.leader_speed, 5.0))
    assert torch.isfinite(LeaderBank(still, steps=75, synthetic_cap=0).window_features).all()


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_sampling_follows_the_mixture(bank, share):
    ids = bank.sample(20_000, share, np.random.default_rng(0))
    assert ids.dtype == torch.int64
    synthetic = bank.is_synthetic(ids)
    assert synthetic.double().mean() == pytest.approx(share, abs=0.015)
    for part, size in ((ids[~synthetic], len(bank.real.gap)), (ids[synthetic], 3000)):
        if len(part):  # uniform within each part: the mean rank is central, the ends are reached
            rank = (part - part.min()).double() / size
            assert rank.mean() == pytest.approx(0.5, abs=0.02)
            assert len(part.unique()) > 0.9 * min(size, len(part) / 4)


def test_sampling_errors(pairs, bank):
    rng = np.random.default_rng(0)
    with pytest.raises(InputError, match="synthetic_share=1.5"):
        bank.sample(5, 1.5, rng)
    empty = LeaderBank(pairs, steps=75, synthetic_cap=0)
    assert len(empty.sample(5, 0.0, rng)) == 5
    with pytest.raises(InputError, match="no synthetic window"):
        empty.sample(5, 0.1, rng)


def test_impossible_filters_end_with_a_warning(pairs, caplog):
    with caplog.at_level(logging.WARNING):
        bank = LeaderBank(
            pairs, steps=75, synthetic_cap=100, filters=Plausibility(max_acceleration=0.0)
        )
    assert len(bank.synthetic.gap) == 0
    assert "0 of 100 synthetic windows after" in caplog.text


def test_windows_longer_than_all_pairs(pairs):
    with pytest.raises(InputError, match="no leader window of 301 samples.*data.context_steps"):
        LeaderBank(pairs, steps=301)


def test_ten_thousand_windows_in_about_a_second(pairs):
    start = time.process_time()
    bank = LeaderBank(pairs, steps=75, augmentation=Augmentation())
    assert len(bank.synthetic.gap) == 10_000
    assert time.process_time() - start < 2.0


def test_real_leaders_pass_the_independent_check():
    path = Path(__file__).parents[3] / "shared/data/ngsim_i80/pairs.parquet"
    if not path.exists():
        pytest.skip("the real pairs are not here")
    bank = LeaderBank(PairsFile(path=str(path)).splits().train, steps=75, synthetic_cap=1000)
    real = bank.real.leader_speed.double().numpy()
    check_filters(bank.synthetic.leader_speed.double().numpy(), real)


def test_settings_can_come_from_a_config(pairs):
    """Nested as in conf/train.yaml: lists from YAML must work where the defaults are tuples."""
    config = OmegaConf.create(
        {
            "_target_": "asbc.design.bank.LeaderBank",
            "_partial_": True,
            "steps": 75,
            "synthetic_cap": 200,
            "augmentation": {
                "_target_": "asbc.design.augment.Augmentation",
                "band": [0.02, 0.4],
                "time_scale_range": [0.8, 1.2],
            },
            "filters": {"_target_": "asbc.design.augment.Plausibility", "percentiles": [2, 98]},
        }
    )
    built = instantiate(config)(pairs=pairs)
    plain = LeaderBank(
        pairs,
        steps=75,
        synthetic_cap=200,
        augmentation=Augmentation(band=(0.02, 0.4), time_scale_range=(0.8, 1.2)),
        filters=Plausibility(percentiles=(2.0, 98.0)),
    )
    assert torch.equal(built.envelope, plain.envelope)
    assert torch.equal(built.synthetic.leader_speed, plain.synthetic.leader_speed)


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        ({"stride": 0}, "bank.stride"),
        ({"stride": 2.5}, "bank.stride"),
        ({"synthetic_cap": -1}, "bank.synthetic_cap"),
        ({"steps": 1}, "data.context_steps"),
    ],
)
def test_bad_sizes_are_named(pairs, bad, field):
    with pytest.raises(InputError, match=f"{field}={next(iter(bad.values()))}; expected a whole"):
        LeaderBank(pairs, **{"steps": 75, **bad})
