"""The three augmentations and the five filters, each against its own definition."""

import numpy as np
import pytest
import torch

from asbc.design.augment import Augmentation, Plausibility, interpolate
from asbc.errors import InputError

DT = 0.2


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.mark.parametrize("steps", [10, 74, 75, 100])
def test_noise_is_band_limited_with_the_stated_size(steps, rng):
    noise = Augmentation().speed_noise(4000, steps, DT, rng).double().numpy()
    power = np.abs(np.fft.rfft(noise)) ** 2
    frequency = np.fft.rfftfreq(steps, DT)
    outside = (frequency < 0.02) | (frequency > 0.5)
    assert power[:, outside].sum() < 1e-9 * power.sum()
    assert noise.std() == pytest.approx(0.20, rel=0.03)


def test_noise_stays_below_its_own_acceleration_and_jerk(rng):
    strong = Augmentation(vel_jitter=5.0, acc_clip=2.5, jerk_clip=5.0)
    noise = strong.speed_noise(500, 75, DT, rng).double().numpy()
    acceleration = np.diff(noise, axis=1) / DT
    jerk = np.diff(acceleration, axis=1) / DT
    assert np.abs(acceleration).max() <= 2.5 * (1 + 1e-5)
    assert np.abs(jerk).max() <= 5.0 * (1 + 1e-4)
    # Rows are scaled as a whole, so the band survives the clip.
    power = np.abs(np.fft.rfft(noise)) ** 2
    assert power[:, np.fft.rfftfreq(75, DT) > 0.5].sum() < 1e-9 * power.sum()


def test_a_window_too_short_for_the_band_gets_no_noise(rng):
    assert not Augmentation().speed_noise(3, 4, DT, rng).any()


@pytest.mark.parametrize("steps", [2, 10, 75, 100])
def test_warps_are_monotone_and_keep_the_end_points(steps, rng):
    warp = Augmentation().time_warp(2000, steps, rng).double().numpy()
    slopes = np.diff(warp, axis=1)
    assert (warp[:, 0] == 0).all() and (warp[:, -1] == steps - 1).all()
    assert slopes.min() >= 0.9 - 1e-4 and slopes.max() <= 1.1 + 1e-4


def test_warps_are_affine_between_knots(rng):
    warp = Augmentation(warp_segments=4).time_warp(200, 81, rng).double().numpy()
    bends = np.abs(np.diff(warp, n=2, axis=1)).max(axis=0)  # bend k sits at sample k + 1
    assert set(np.flatnonzero(bends > 1e-3) + 1) == {20, 40, 60}


def test_interpolation_matches_numpy(rng):
    values = torch.tensor(rng.random((20, 75)))
    position = torch.tensor(np.sort(rng.random((20, 75)) * 74, axis=1))
    expected = [np.interp(p, np.arange(75), v) for p, v in zip(position, values, strict=True)]
    np.testing.assert_allclose(interpolate(values, position), np.stack(expected), atol=1e-12)


def test_rescaling_alone_is_a_common_factor(rng):
    only_scale = Augmentation(vel_jitter=0.0, time_scale_range=(1.0, 1.0), rescale_max=0.1)
    speed = torch.tensor(rng.uniform(2, 10, (3000, 75)), dtype=torch.float32)
    factor = (only_scale.apply(speed, DT, rng) / speed).double()
    assert (factor.amax(1) - factor.amin(1)).max() < 1e-5
    assert 0.9 <= factor.min() < 0.905 and 1.095 < factor.max() <= 1.1 + 1e-6


def test_every_candidate_is_changed(rng):
    speed = torch.sin(torch.arange(75) / 8).expand(700, 75) * 3 + 10
    changed = (Augmentation().apply(speed, DT, rng) - speed).abs().amax(dim=1)
    assert (changed > 0).all()


def test_rows_do_not_depend_on_how_many_are_drawn():
    small, large = (Augmentation().time_warp(n, 75, np.random.default_rng(1)) for n in (10, 100))
    assert torch.equal(small, large[:10])


@pytest.mark.parametrize(
    "bad",
    [
        {"time_scale_range": (1.05, 1.1)},
        {"rescale_max": 1.0},
        {"vel_jitter": -0.1},
        {"acc_clip": -1.0},
        {"jerk_clip": float("nan")},
        {"band": (0.5, 0.02)},
        {"warp_segments": 0},
    ],
)
def test_bad_settings_are_named(bad):
    with pytest.raises(InputError, match=f"bank.augmentation.{next(iter(bad))}="):
        Augmentation(**bad)


@pytest.mark.parametrize(
    "bad",
    [
        {"max_acceleration": -1.0},
        {"max_jerk": -1.0},
        {"kinematic_tolerance": -0.5},
        {"percentiles": (99.0, 1.0)},
        {"percentiles": (1.0, 101.0)},
    ],
)
def test_bad_limits_are_named(bad):
    with pytest.raises(InputError, match=f"bank.filters.{next(iter(bad))}="):
        Plausibility(**bad)


WIDE = torch.tensor([[-1e9, -1e9], [1e9, 1e9]], dtype=torch.float64)


def bump(size: float, at: int = 30) -> torch.Tensor:
    """Constant 10 m/s with one sample off."""
    speed = torch.full((1, 75), 10.0)
    speed[0, at] += size
    return speed


@pytest.mark.parametrize(
    ("speed", "limits", "failed"),
    [
        (bump(0.0), {}, set()),
        (bump(-10.001), {"max_acceleration": 1e9, "max_jerk": 1e9}, {"non-negative speed"}),
        (bump(-10.0), {"max_acceleration": 1e9, "max_jerk": 1e9}, set()),
        (bump(1.99), {"max_jerk": 1e9}, set()),  # 9.95 m/s^2
        (bump(2.01), {"max_jerk": 1e9}, {"acceleration"}),
        (bump(0.39), {}, set()),  # up and down again: 2 * 0.39 / 0.2^2 = 19.5 m/s^3
        (bump(0.41), {}, {"jerk"}),
    ],
)
def test_filters_cut_at_their_thresholds(speed, limits, failed):
    passes = Plausibility(**limits).accept(speed, DT, WIDE)
    assert {name for name, ok in passes.items() if not ok[0]} == failed


def test_envelope_is_the_percentile_range(rng):
    speed = torch.tensor(rng.uniform(2, 12, (300, 75)), dtype=torch.float32)
    v = speed.double().numpy()
    a = np.diff(v, axis=1) / DT
    a = np.concatenate([a[:, :1], a], axis=1)
    envelope = Plausibility().envelope(speed, DT).numpy()
    np.testing.assert_allclose(envelope[:, 0], np.percentile(v, [1, 99]))
    np.testing.assert_allclose(envelope[:, 1], np.percentile(a, [1, 99]))
    passes = Plausibility(max_jerk=1e9).accept(speed, DT, torch.from_numpy(envelope))["envelope"]
    inside = (v >= envelope[0, 0]) & (v <= envelope[1, 0])
    inside &= (a >= envelope[0, 1]) & (a <= envelope[1, 1])
    assert passes.tolist() == inside.all(axis=1).tolist()
