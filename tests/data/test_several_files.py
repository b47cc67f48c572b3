"""Several data sets at once: each is split by itself."""

import pandas as pd
import pytest
import torch

from asbc.baselines.method import known_pairs
from asbc.data.pairs_file import PairsFile
from asbc.errors import InputError


@pytest.fixture
def files(tiny_pairs, tmp_path):
    table = pd.read_csv(tiny_pairs)
    first, second = tmp_path / "a.csv", tmp_path / "b.parquet"
    table.to_csv(first, index=False)
    other = table[table["pair_id"] < 10].assign(recording="other")
    other.to_parquet(second, index=False)
    return [str(first), str(second)]


def source(path):
    return PairsFile(path=path, context_steps=20, min_duration=8.0)


def test_the_split_of_each_file_is_its_own(files):
    joint, each = source(files).splits(), [source(path).splits() for path in files]
    for name in ("train", "validation", "test"):
        own = [i for part in each for i in getattr(part, name).pair_id]
        assert list(getattr(joint, name).pair_id) == own
    assert len(source(files).pairs()) == 34
    assert "a.csv and " in source(files).description
    assert "34 pairs" in joint.summary.headline()
    held = set(joint.test.pair_id)
    assert set(known_pairs(source(files)).pair_id) == set(source(files).pairs().pair_id) - held


def test_recorded_accelerations_of_one_file_leave_the_other_as_it_is(files):
    """Joined tables had no accelerations where only the other file recorded some."""
    table = pd.read_parquet(files[1]).assign(acceleration=0.125)
    table.to_parquet(files[1], index=False)
    joint, alone = source(files).pairs(), source(files[0]).pairs()
    for name in alone.pair_id:
        own, same = alone.pair(alone.find(name)), joint.pair(joint.find(name))
        assert torch.equal(same["acceleration"], own["acceleration"])
    other = joint.select([i for i, name in enumerate(joint.recording) if name == "other"])
    assert bool((other.acceleration == 0.125).all())


def test_a_pair_in_two_files_is_refused(files):
    with pytest.raises(InputError, match="is in another file too"):
        source([files[0], files[0]]).pairs()
    with pytest.raises(InputError, match="no file"):
        source([]).pairs()


def test_a_run_trains_on_several_files_and_calibrates_them(files, tiny, run_command, tmp_path):
    given = [text for text in tiny if not text.startswith("data.path")]
    log, run = tmp_path / "log", tmp_path / "run"
    overrides = [*given, f"data.path=[{','.join(files)}]", "training.rounds=0"]
    assert run_command("train", [*overrides, f"hydra.run.dir={run}"], log=log) == 0, (
        log.read_text()
    )
    small = ["evaluation=fast", "evaluation.horizon=12", "evaluation.samples=10"]
    assert run_command("evaluate", [f"run={run}", *small], log=log) == 0, log.read_text()
    assert run_command("calibrate", [f"run={run}", "calibration.samples=5"], log=log) == 0, (
        log.read_text()
    )
    assert (run / "calibration" / "a_b" / "drivers.csv").is_file()
