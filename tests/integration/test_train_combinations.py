"""Every residual x acquisition x transform x flow trains a few steps."""

from itertools import product

import pandas as pd
import pytest
import torch

from asbc.errors import InputError

CHOICES = (
    ("gaussian", "matern"),
    ("joint", "theta_only", "prior_only", "random"),
    ("softplus", "bounded"),
    ("maf", "nsf"),
)
# The half in which every pair of choices occurs runs by default, the rest nightly.
COMBINATIONS = [
    pytest.param(
        tuple(choices[i] for choices, i in zip(CHOICES, places, strict=True)),
        marks=[pytest.mark.slow] if sum(places) % 2 else [],
    )
    for places in product(*(range(len(choices)) for choices in CHOICES))
]


@pytest.mark.parametrize("combination", COMBINATIONS, ids="-".join)
def test_the_combination_trains(combination, tiny, train_here, tmp_path):
    names = ("residual", "acquisition", "transform", "flow")
    chosen = [f"{name}={choice}" for name, choice in zip(names, combination, strict=True)]
    known = [t for t in tiny if combination[1] != "random" or "acquisition" not in t]
    small = ["training.rounds=1", "training.max_epochs=1", "training.warmup_simulations=32"]
    loss = train_here([*known, *chosen, *small], tmp_path)
    rounds = pd.read_csv(tmp_path / "rounds.csv")
    assert rounds["loss"].min() == pytest.approx(loss) and rounds["round"].tolist() == [0, 1]
    saved = torch.load(tmp_path / "checkpoints" / "last.ckpt", weights_only=True)
    buffer = saved["SimulationDataModule"]["buffer"]
    assert buffer["theta"].shape == (64, 6 if combination[0] == "gaussian" else 7)
    assert buffer["round"].tolist() == [0] * 32 + [1] * 32
    leak = rounds["leak_rate"].iloc[1] if "leak_rate" in rounds else 0.0
    assert leak == 0.0 or combination[2] == "softplus"


@pytest.mark.parametrize("residual", CHOICES[0])
def test_coordinates_by_trajectory_train_with_joint_acquisition(
    residual, tiny, train_here, tmp_path
):
    guided = [f"residual={residual}", "transform=laplace", "training.rounds=1"]
    small = ["training.max_epochs=1", "training.warmup_simulations=32"]
    loss = train_here([*tiny, *guided, *small], tmp_path)
    rounds = pd.read_csv(tmp_path / "rounds.csv")
    assert rounds["loss"].min() == pytest.approx(loss)
    # Nothing leaves the support, but a flow that has learned nothing yet overflows at its edge.
    assert rounds["leak_rate"].iloc[1] < 1


TARGETED = ("acquisition=targeted", "acquisition.surrogate_pairs=64", "acquisition.subset_size=3")
TARGETED += ("training.symmetry=auto",)


@pytest.mark.parametrize(
    "choices",
    [
        ("residual=gaussian",),
        ("residual=matern", "transform=laplace"),
        ("model=fvd", "residual=matern"),
        ("robust=real", "transform=bounded"),
    ],
)
def test_targeted_design_keeps_everything_and_weighs_it(choices, tiny, train_here, tmp_path):
    known = [t for t in tiny if not t.startswith("acquisition")]
    sizes = ["training.warmup_simulations=96", "training.buffer_capacity=160"]
    train_here([*known, *TARGETED, *choices, *sizes], tmp_path)
    rounds = pd.read_csv(tmp_path / "rounds.csv")
    assert rounds["kept"].tolist() == [96, 128, 160]
    assert rounds["steps"].tolist() == [2 * 3, 2 * 4, 2 * 5]  # two passes over what is kept
    assert (rounds["largest_weight"] < 160 / 96 * 2 * 2).all()
    assert (rounds["effective_sample_size"] > 0.3 * rounds["kept"]).all()
    saved = torch.load(tmp_path / "checkpoints" / "last.ckpt", weights_only=True)
    data = saved["SimulationDataModule"]
    assert sorted(data["proposals"]) == [0, 1, 2] and len(data["weight"]) == 160
    # With the symmetry, and only then, columns of the transform are made anew in every epoch.
    assert data["buffer"]["columns"].shape == (160, 0)


def test_a_law_without_symmetry_is_refused_only_if_it_is_asked_for(tiny, train_here, tmp_path):
    with pytest.raises(InputError, match="training.symmetry=true: errors of measurement"):
        train_here([*tiny, "robust=real", "training.symmetry=true"], tmp_path)
