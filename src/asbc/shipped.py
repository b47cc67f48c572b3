"""Models inside the package: one file each, opened by name like a run.

A file holds config, card and weights (`asbc.utils.tensor_file`), and nothing that could be
executed. `digests.json` beside the files says what each must be. Weight matrices are kept in half
precision; what a card says was measured with them as they are in the file.
"""

from __future__ import annotations

import json
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from asbc.config import build, require_trusted
from asbc.errors import InputError
from asbc.run import BUILT, Run, same_series
from asbc.utils.files import write_text
from asbc.utils.tensor_file import digest_of, read_header, read_tensors, write_tensor_file

if TYPE_CHECKING:
    from asbc.data.windows import LeaderWindows
    from asbc.posterior import Posterior
    from asbc.posterior.novelty import Novelty

FOLDER = Path(__file__).parent / "models"
DIGESTS = "digests.json"
ENDING = ".asbc"
# What `asbc calibrate` uses unless told.
DEFAULT = "idm_matern"
# A package of small models: none may grow beyond this.
MOST_BYTES = 500_000
# Parts of a run's config that say how and where it ran, not what it is.
LEFT_OUT = ("hydra", "logger", "callbacks", "trainer", "folder", "ckpt_path", "threads", "debug")
WEIGHTS, NOVELTY = "weights.", "novelty."
# Of the posterior's buffers, those that training sets; the others follow from the config.
STATISTICS = ("input_mean", "input_std", "u_mean", "u_std", "widening", "lags")


def names() -> tuple[str, ...]:
    """The shipped models, the default first."""
    found = _digests(FOLDER)
    return tuple(sorted(found, key=lambda name: (name != DEFAULT, name)))


class ShippedRun(Run):
    """A model of the package, with the interface of a run; nothing is ever written to it.

    Args:
        name: of the model.
        folder: where its file is.

    Example:
        >>> run = ShippedRun.open("idm_matern")
        >>> run, run.card["parameters"][0]["name"]
        (ShippedRun('idm_matern'), 'v0')
    """

    def __init__(self, name: str, folder: Path = FOLDER) -> None:
        super().__init__(folder / f"{name}{ENDING}")
        self.name = name

    def __repr__(self) -> str:
        return f"ShippedRun({self.name!r})"

    @property
    def objective(self) -> str:
        """What it was trained for; only finished runs are shipped, so its config says it."""
        return self.config.get("objective", {}).get("name", "simulated")

    @property
    def holdout_loss(self) -> float:
        """Not kept: NaN."""
        return float("nan")

    @classmethod
    def open(cls, name: str | Path, folder: Path = FOLDER) -> ShippedRun:
        """The model of this name; refused if its file is not the one that was shipped."""
        run, known = cls(str(name), folder), _digests(folder)
        if str(name) not in known:
            listed = ", ".join(sorted(known)) or "there is none"
            raise InputError(f"run={name}: no shipped model of this name; expected {listed}")
        if not run.path.is_file():
            raise InputError(f"run={name}: {run.path.name} is missing; install asbc again")
        if digest_of(run.path) != known[str(name)]:
            raise InputError(
                f"run={name}: {run.path} is not the file that was shipped (its SHA-256 is not the "
                f"one of {DIGESTS}); install asbc again"
            )
        if not same_series(run.version, version("asbc")):
            raise InputError(
                f"run={name}: made for asbc {run.version}, but this is asbc {version('asbc')}; "
                "install asbc again"
            )
        require_trusted({part: run.config.get(part) for part in BUILT}, f"run={name}")
        return run

    @property
    def shown(self) -> str:
        """Its name: what a user types."""
        return self.name

    @cached_property
    def header(self) -> dict[str, Any]:
        """All plain values of the file."""
        return read_header(self.path)

    @cached_property
    def config(self) -> dict[str, Any]:
        """The config it was trained with, but for how and where."""
        return self.header["config"]

    @cached_property
    def record(self) -> dict[str, Any]:
        """Seed, versions and overrides."""
        return self.header["record"]

    @property
    def card(self) -> dict[str, Any]:
        """What a user should know of it, see `asbc.model_library`."""
        return self.header["card"]

    @property
    def digest(self) -> str:
        """SHA-256 of its file."""
        return digest_of(self.path)

    @property
    def selected_round(self) -> int:
        """The round whose weights were kept."""
        return int(self.record["round"])

    @cached_property
    def _tensors(self) -> dict[str, np.ndarray]:
        return read_tensors(self.path)

    def _part(self, prefix: str) -> dict[str, Any]:
        import torch

        # Copied: what was read from a file may not be written to.
        return {
            name.removeprefix(prefix): torch.from_numpy(value.astype(_plain(value)))
            for name, value in self._tensors.items()
            if name.startswith(prefix)
        }

    @cached_property
    def posterior(self) -> Posterior:
        """The trained density q(theta | trajectory)."""
        estimator = build(self.config["estimator"])
        state = estimator.state_dict()
        stored = self._part(WEIGHTS)
        wrong = [k for k, v in stored.items() if k not in state or state[k].shape != v.shape]
        missing = {name for name, _ in estimator.named_parameters()} - set(stored)
        if wrong or missing:
            raise InputError(
                f"run={self.name}: its weights do not fit the model that this version builds "
                f"({[*wrong, *sorted(missing)][0]}); install asbc again"
            )
        estimator.load_state_dict(state | stored)
        return estimator.posterior.eval()

    def leaders(self, steps: int) -> LeaderWindows | None:
        """Leaders of its training split, made again: they are simulated themselves."""
        from asbc.data.windows import leader_windows

        own = self.config["data"]["context_steps"]
        if steps > own:
            return None
        windows = leader_windows(self.source().splits().train, own, self.config["bank"]["stride"])
        return windows._replace(leader_speed=windows.leader_speed[:, :steps].contiguous())

    def novelty(self, context_steps: int, context: str = "first") -> Novelty | None:
        """The yardstick for contexts unlike the training's; see `Run.novelty`."""
        from asbc.posterior.novelty import Novelty

        # One yardstick is stored; that of histories has drivers of whom little or much is known.
        if context_steps == self.config["data"]["context_steps"]:
            return Novelty(**self._part(NOVELTY))
        return super().novelty(context_steps, context)


def pack(run: Run, name: str, card: dict[str, Any], folder: Path) -> ShippedRun:
    """A run as a file of `folder`, which must not be larger than 500 kB.

    The same run gives the same bytes: the file holds no time and no place.
    """
    own = run.config["data"] | {"cache_dir": ".cache/asbc"}
    config = {key: value for key, value in run.config.items() if key not in LEFT_OUT}
    versions = {k: v for k, v in run.record["versions"].items() if k != "asbc"}
    record = {
        "seed": run.seed,
        "round": run.selected_round,
        "overrides": list(run.overrides),
        "versions": {"asbc": version("asbc"), **versions},
    }
    header = {"name": name, "config": config | {"data": own}, "record": record, "card": card}
    novelty = vars(run.novelty(own["context_steps"], "all" if run.history else "first"))
    tensors = {f"{WEIGHTS}{key}": value for key, value in _weights(run.posterior).items()}
    tensors |= {f"{NOVELTY}{key}": _compact(value.numpy()) for key, value in novelty.items()}
    path = folder / f"{name}{ENDING}"
    digest = write_tensor_file(path, header, tensors)
    if path.stat().st_size > MOST_BYTES:
        size = path.stat().st_size
        path.unlink()
        raise InputError(
            f"{name}: {size} bytes, more than {MOST_BYTES}; choose a smaller encoder or flow"
        )
    listed = dict(sorted((_digests(folder) | {name: digest}).items()))
    write_text(folder / DIGESTS, json.dumps(listed, indent=2) + "\n")
    return ShippedRun(name, folder)


def _weights(posterior: Posterior) -> dict[str, np.ndarray]:
    """What a model must know besides its config: parameters and statistics of the training."""
    from nflows.transforms.made import MaskedLinear

    state = {k: v.detach().numpy() for k, v in posterior.state_dict(prefix="posterior.").items()}
    # What a mask takes away has no effect, and zeros take no space.
    for key, module in posterior.named_modules(prefix="posterior"):
        if isinstance(module, MaskedLinear):
            state[f"{key}.weight"] = (module.weight * module.mask).detach().numpy()
    kept = {f"posterior.{key}" for key, _ in posterior.named_parameters()}
    kept |= {f"posterior.{key}" for key in STATISTICS}
    return {key: _compact(value) for key, value in state.items() if key in kept}


def _compact(value: np.ndarray) -> np.ndarray:
    """Matrices in half precision, vectors as they are."""
    return value.astype("<f2" if value.ndim > 1 else "<f4")


def _plain(value: np.ndarray) -> type:
    return np.int64 if value.dtype.kind == "i" else np.float32


def _digests(folder: Path) -> dict[str, str]:
    file = folder / DIGESTS
    return json.loads(file.read_text()) if file.is_file() else {}
