"""What `logger=wandb` leaves on disk without an account: read back from the run's own records."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

BLOCK, HEADER = 32768, 7


def fragments(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Kind and payload of each fragment of a LevelDB log, as W&B writes it."""
    assert content.startswith(b":W&B")
    place = HEADER
    while place + HEADER <= len(content):
        left = BLOCK - place % BLOCK
        if left < HEADER:  # padding at a block's end
            place += left
            continue
        _, size, kind = struct.unpack_from("<IHB", content, place)
        place += HEADER
        yield kind, content[place : place + size]
        place += size


def records(path: Path) -> Iterator[Any]:
    """The protobuf records of one .wandb file."""
    from wandb.proto.wandb_internal_pb2 import Record

    parts = b""
    for kind, payload in fragments(path.read_bytes()):
        parts += payload
        if kind in (1, 4):  # a whole record, or the last fragment of one
            record = Record()
            record.ParseFromString(parts)
            parts = b""
            yield record


def values(items: Any) -> dict[str, Any]:
    return {".".join(i.nested_key) or i.key: json.loads(i.value_json) for i in items}


class Offline:
    """Everything the sessions of one run folder logged, in order."""

    def __init__(self, folder: Path) -> None:
        files = sorted(folder.glob("wandb/offline-run-*/*.wandb"))
        self.sessions = len(files)
        self.files = [path.parent / "files" for path in files]
        self.ids, self.history, self.summary, self.config = set(), [], {}, {}
        self.metrics, self.artifacts, self.run = {}, [], None
        for record in (record for path in files for record in records(path)):
            match record.WhichOneof("record_type"):
                case "run":
                    self.run = self.run or record.run
                    self.ids.add(record.run.run_id)
                    self.config |= values(record.run.config.update)
                case "config":
                    self.config |= values(record.config.update)
                case "history":
                    self.history.append(values(record.history.item))
                case "summary":
                    self.summary |= values(record.summary.update)
                case "metric":
                    metric = record.metric
                    self.metrics[metric.name or metric.glob_name] = metric.step_metric
                case "artifact":
                    self.artifacts.append(record.artifact)


@pytest.fixture
def logged(run_command, tiny, tmp_path, monkeypatch) -> Path:
    """A run that was trained in two parts and evaluated by someone who has no account."""
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("NETRC", "WANDB_CONFIG_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setattr("asbc.reporting.run_report.all_pictures", _one_picture)
    run, log = tmp_path / "run", tmp_path / "log"
    first = [*tiny, "training.rounds=0", "logger=wandb", "tags=[paper,test]"]
    first += ["logger.wandb.group=trial", "logger.wandb.notes=a note", f"hydra.run.dir={run}"]
    assert run_command("train", first, log=log) == 0, log.read_text()
    resumed = [f"ckpt_path={run}/checkpoints/last.ckpt"]
    assert run_command("train", resumed, log=log) == 0, log.read_text()
    fast = ["evaluation=fast", "evaluation.horizon=20", "evaluation.samples=20"]
    fast += ["evaluation.simulated_drivers=0", f"run={run}"]
    assert run_command("evaluate", fast, log=log) == 0, log.read_text()
    return run


def _one_picture(evaluation, label, rounds, folder):
    from matplotlib.figure import Figure

    folder.mkdir(parents=True)
    Figure(figsize=(1, 1)).savefig(folder / "convergence.png")
    return []


def test_everything_is_in_one_run(logged):
    offline = Offline(logged)
    assert offline.sessions == 3 and len(offline.ids) == 1
    run = offline.run
    assert (run.project, run.run_group, run.job_type) == ("asbc", "trial", "train")
    assert list(run.tags) == ["paper", "test"] and run.notes == "a note"
    assert offline.config["training"]["rounds"] == 0
    assert offline.config["residual"]["name"] == "gaussian"

    assert offline.metrics["round/*"] == "round/round"
    epochs = [row for row in offline.history if "val/loss" in row]
    metrics = pd.read_csv(logged / "metrics.csv")
    assert [row["val/loss"] for row in epochs] == pytest.approx(metrics["val/loss"].tolist())
    [row] = [row for row in offline.history if "round/loss" in row]
    rounds = pd.read_csv(logged / "rounds.csv")
    assert row["round/round"] == 0 and row["round/loss"] == pytest.approx(rounds["loss"].item())
    assert any(artifact.type == "model" for artifact in offline.artifacts)

    saved = json.loads((logged / "evaluation" / "metrics.json").read_text())
    for protocol in ("all_windows", "after_context"):
        assert offline.summary[f"eval/{protocol}/es_s"] == pytest.approx(saved[protocol]["es_s"])
    evaluated = next(row for row in offline.history if "eval/windows.path" in row)
    windows = pd.read_parquet(logged / "evaluation" / "windows.parquet")
    files = offline.files[-1]
    table = json.loads((files / evaluated["eval/windows.path"]).read_text())
    logged_es = [row[table["columns"].index("es_s")] for row in table["data"]]
    assert logged_es == pytest.approx(windows["es_s"].tolist())
    assert evaluated["eval/drivers.nrows"] == windows["pair_id"].nunique()
    picture = files / evaluated["eval/convergence.path"]
    assert picture.read_bytes().startswith(b"\x89PNG")
