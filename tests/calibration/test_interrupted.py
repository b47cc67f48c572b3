"""Workers and main processes that are killed, disks that are full: the same bytes afterwards."""

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from asbc.calibration.calibrate import (
    CalibrationSettings,
    Job,
    calibrate_into,
    workers_of,
)
from asbc.calibration.export import parts
from asbc.calibration.refinement import NoRefinement, Refined, Refinement
from asbc.data.pairs import Pairs
from asbc.engine import Engine, LocalEngine, RayEngine
from asbc.errors import InputError
from asbc.trained_model import Model
from asbc.utils.files import room_below
from asbc.utils.progress import Stopwatch

FILES = ("draws.parquet", "drivers.csv", "summary.csv", "posterior.nc")


@dataclass(frozen=True)
class Deadly:
    """A refinement that kills its process the first time that it sees a driver, and is slow."""

    inner: Refinement
    driver: str
    mark: str
    seconds: float = 0.0

    def __call__(
        self, model: Model, pairs: Pairs, samples: int, seed: int, watch: Stopwatch
    ) -> Refined:
        if self.driver in pairs.pair_id and not Path(self.mark).exists():
            Path(self.mark).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(self.seconds)
        return self.inner(model, pairs, samples, seed, watch)


@pytest.fixture(scope="module")
def job(gaussian_model: Model) -> Job:
    settings = CalibrationSettings(samples=60, chunk=2, predictive_draws=2)
    return Job(model=gaussian_model, refinement=NoRefinement(), settings=settings)


@pytest.fixture(scope="module")
def pairs(gaussian_model: Model, simulate_pairs: Callable[..., tuple[object, Pairs]]) -> Pairs:
    return simulate_pairs(gaussian_model.simulator, 15, steps=40)[1]


@pytest.fixture(scope="module")
def whole(job: Job, pairs: Pairs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A calibration that nothing disturbed, in one process."""
    folder = tmp_path_factory.mktemp("whole")
    calibrate_into(folder, job, pairs)
    return folder


def same(folder: Path, whole: Path) -> bool:
    return all((folder / n).read_bytes() == (whole / n).read_bytes() for n in FILES)


def by(engine: Engine, folder: Path, job: Job, pairs: Pairs) -> None:
    with workers_of(engine, job) as pool:
        calibrate_into(folder, job, pairs, pool=pool)


def deadly(job: Job, tmp_path: Path, seconds: float = 0.0) -> Job:
    killer = Deadly(job.refinement, "r/7", str(tmp_path / "killed"), seconds)
    return replace(job, refinement=killer)


def test_a_local_worker_killed_in_the_middle(job, pairs, whole, tmp_path):
    by(LocalEngine(workers=2), tmp_path / "out", deadly(job, tmp_path), pairs)
    assert (tmp_path / "killed").exists() and same(tmp_path / "out", whole)


def test_a_worker_killed_amid_drivers_with_several_pairs(history_run, several_pairs, tmp_path):
    settings = CalibrationSettings(samples=60, chunk=2, predictive_draws=2)
    model = history_run.model(context="all")
    drivers = Job(model=model, refinement=NoRefinement(), settings=settings)
    calibrate_into(tmp_path / "whole", drivers, several_pairs)
    killer = Deadly(drivers.refinement, several_pairs.pair_id[8], str(tmp_path / "killed"))
    by(
        LocalEngine(workers=2),
        tmp_path / "out",
        replace(drivers, refinement=killer),
        several_pairs,
    )
    assert (tmp_path / "killed").exists() and same(tmp_path / "out", tmp_path / "whole")


def test_a_ray_worker_killed_in_the_middle(job, pairs, whole, tmp_path):
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'asbc[ray]'")
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    ray.init(num_cpus=2, object_store_memory=10**8, log_to_driver=False, logging_level="error")
    try:
        by(RayEngine(workers=2), tmp_path / "out", deadly(job, tmp_path), pairs)
    finally:
        ray.shutdown()
        ray.cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    assert (tmp_path / "killed").exists() and same(tmp_path / "out", whole)


def test_the_main_process_killed_in_the_middle(job, pairs, whole, tmp_path):
    (tmp_path / "killed").touch()  # nobody else dies
    slow, folder = deadly(job, tmp_path, seconds=0.4), tmp_path / "out"
    main = os.fork()
    if not main:
        by(LocalEngine(workers=2), folder, slow, pairs)
        os._exit(0)
    limit = time.monotonic() + 120
    while len(list((folder / "parts").glob("*.json"))) < 4:  # the manifest and three chunks
        assert time.monotonic() < limit
        time.sleep(0.02)
    os.kill(main, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(main, 0)[1]) == -signal.SIGKILL
    assert not any((folder / name).exists() for name in (*FILES, "calibration.json"))
    time.sleep(1.0)  # its workers end with it
    done = {file.name: file.stat().st_mtime_ns for file in (folder / "parts").glob("*.json")}
    assert 4 <= len(done) < 9
    seen = []
    original = parts.Parts.write
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts.Parts, "write", lambda *a: (seen.append(a[1]), original(*a))[1])
        calibrate_into(folder, slow, pairs)
    assert len(seen) == 9 - len(done)  # what was done is not done again
    assert same(folder, whole)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MB; skipped if it cannot be had."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)]
    try:
        done = subprocess.run(command, capture_output=True)
    except FileNotFoundError:
        pytest.skip("no mount here")
    if done.returncode:
        pytest.skip(f"no tmpfs may be mounted here: {done.stderr.decode().strip()}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)])


def test_a_full_disk_is_named_and_leaves_nothing_half_written(job, pairs, whole, small_disk):
    folder, filler = small_disk / "out", small_disk / "filler"
    # No room for the chunks, then for the chunks alone.
    for room, workers in ((50_000, 1), (50_000, 2), (280_000, 1)):
        used = sum(f.stat().st_blocks * 512 for f in folder.rglob("*") if f.is_file())
        filler.write_bytes(bytes((4 << 20) - used - room))
        with (
            pytest.raises(InputError, match="out: the disk is full; make room"),
            room_below(folder),
        ):
            by(LocalEngine(workers=workers), folder, job, pairs)
        left = [name for name in (*FILES, "calibration.json") if (folder / name).exists()]
        assert not {*left} & {"draws.parquet", "posterior.nc", "calibration.json"}
        assert all((folder / n).read_bytes() == (whole / n).read_bytes() for n in left)
        assert not list(folder.rglob("*.partial"))
    assert len(list((folder / "parts").glob("0*.json"))) == 8  # all chunks are done
    filler.unlink()
    calibrate_into(folder, job, pairs)
    assert same(folder, whole)


@pytest.mark.parametrize("step", ["write_table", "ParquetWriter"])
def test_a_write_that_fails_for_want_of_room(step, job, pairs, whole, tmp_path, monkeypatch):
    """As above where no file system may be mounted; in a chunk, and when chunks are merged."""

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(parts.pq, step, full)
        with pytest.raises(InputError, match="the disk is full"), room_below(tmp_path):
            calibrate_into(tmp_path, job, pairs)
    assert not any((tmp_path / name).exists() for name in ("draws.parquet", "calibration.json"))
    assert not list(tmp_path.rglob("*.partial"))
    calibrate_into(tmp_path, job, pairs)
    assert same(tmp_path, whole)


def test_other_errors_of_writing_are_not_taken_for_a_full_disk(tmp_path):
    with pytest.raises(PermissionError), room_below(tmp_path):
        raise PermissionError(errno.EACCES, "no")


def test_many_drivers_are_written_in_parts(job, pairs, whole, tmp_path):
    import pandas as pd

    from asbc.population import Population

    in_parts = replace(job, settings=replace(job.settings, drivers_per_file=6))
    for workers in (1, 2):
        folder = tmp_path / str(workers)
        by(LocalEngine(workers=workers), folder, in_parts, pairs)
        assert not (folder / "posterior.nc").exists() and not (folder / "posterior").exists()
    one, two = (
        {
            f.relative_to(p): f.read_bytes()
            for f in p.rglob("*")
            if f.suffix in (".csv", ".parquet")
        }
        for p in (tmp_path / "1", tmp_path / "2")
    )
    assert one == two and len(one) == 3 * 3 + 1
    index = pd.read_csv(tmp_path / "1" / "index.csv", dtype={"part": str})
    assert index["drivers"].sum() == 15 and index["part"].tolist() == ["00000", "00001", "00002"]
    for kind, read in (("draws", pd.read_parquet), ("drivers", pd.read_csv)):
        ending = "parquet" if kind == "draws" else "csv"
        files = [tmp_path / "1" / kind / f"{part}.{ending}" for part in index["part"]]
        joined = pd.concat([read(file) for file in files], ignore_index=True)
        expected = read(whole / f"{kind}.{ending}")
        pd.testing.assert_frame_equal(joined.astype(expected.dtypes), expected)
    prior = job.model.simulator.prior
    ours, theirs = (Population.read(f, prior).theta for f in (tmp_path / "1", whole))
    assert (ours == theirs).all()
    wanted = replace(job, settings=replace(in_parts.settings, arviz=True))
    calibrate_into(tmp_path / "arviz", wanted, pairs)
    assert len(list((tmp_path / "arviz" / "posterior").glob("*.nc"))) == 3
