"""What commands do to their arguments before Hydra starts, and to Hydra's complaints about them.

Nothing heavy is imported here: `--help`, completion and mistakes answer at once.
"""

import difflib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from asbc.config import CONF, compose, input_error, offer_data
from asbc.errors import InputError
from asbc.run import LAST, Run, key_of
from asbc.shipped import ShippedRun, names


def resume_arguments(arguments: Sequence[str]) -> list[str]:
    """Command-line arguments of a resumed run: the run's own overrides, then those given now.

    Without a file in `ckpt_path=` the arguments come back as they are.

    Raises:
        InputError: if the checkpoint does not exist or is not inside a run folder.
    """
    # Elsewhere trainers have no strategy to begin with, so Lightning's users add one.
    arguments = [t.lstrip("+") if key_of(t) == "trainer.strategy" else t for t in arguments]
    given = [text for text in arguments if key_of(text) == "ckpt_path"]
    others = [text for text in arguments if key_of(text) != "ckpt_path"]
    checkpoint = _value(given[-1]) if given else ""
    if checkpoint in ("", "null", LAST):
        return list(arguments)
    path = Path(checkpoint).resolve()
    run = Run(path.parent.parent)
    if not path.is_file():
        raise InputError(f"ckpt_path={checkpoint}: no such file")
    if not run.record_file.is_file():
        raise InputError(
            f"ckpt_path={checkpoint}: expected RUN/checkpoints/*.ckpt, but "
            f"{run.path} has no {run.record_file.name}"
        )
    if any(text in ("-m", "--multirun") for text in arguments):
        raise InputError("ckpt_path= resumes one run; it cannot be combined with --multirun")
    saved = [*run.overrides, f"seed={run.seed}", f"hydra.run.dir={quoted(run.path)}"]
    return merge_overrides(saved, [*others, f"ckpt_path={quoted(path)}"])


def merge_overrides(saved: Sequence[str], given: Sequence[str]) -> list[str]:
    """Both lists, where an override given now replaces a saved one of the same key.

    Example:
        >>> merge_overrides(["residual=matern", "seed=3"], ["seed=4", "logger=wandb"])
        ['residual=matern', 'seed=4', 'logger=wandb']
    """
    replaced = {key_of(text) for text in given}
    return [text for text in saved if key_of(text) not in replaced] + list(given)


def offer_data_of_run(arguments: Sequence[str], default: str = "???") -> list[str]:
    """Make the data of the run that `run=` names the choice `data=run`, which is the default.

    A change of one setting, `data.path=FILE`, is then one of the run's own section; a shipped
    model has no data that a user could want, and reads a pairs table. Whatever data are chosen,
    the time step and the context's length are the run's: they belong to the model.

    Args:
        arguments: of the command line.
        default: the run where none is named.

    Returns:
        The arguments, with the run's folder in the quotes that Hydra's grammar may need.
    """
    given = {key_of(text): _value(text) for text in arguments}
    section: dict[str, Any] = {}
    named = given.get("run", default)
    if named not in ("", "???", "null"):
        if {"-m", "--multirun"} & set(arguments):
            raise InputError("one run at a time: run the command once for each run folder")
        section = _data_of(Run.open(named))
    offer_data(section)
    result = [
        # Folders of a sweep are named by overrides; their commas and equals signs need quotes.
        f"run={quoted(named)}" if key_of(text) == "run" and section else text
        for text in arguments
    ]
    if section and given.get("data", "run") != "run":
        result += [
            f"data.{name}={section[name]}"
            for name in ("dt", "context_steps")
            if f"data.{name}" not in given
        ]
    return result


def _data_of(run: Run) -> dict[str, Any]:
    """The data section that is offered for a run."""
    own = run.config["data"]
    if not isinstance(run, ShippedRun):
        return own
    import yaml

    pairs = yaml.safe_load((CONF / "data" / "pairs.yaml").read_text())
    return pairs | {name: own[name] for name in ("dt", "context_steps")}


def run_folder(run: str) -> str:
    """Where results of a run go: below its folder; a shipped model's below outputs/NAME.

    Example:
        >>> run_folder("outputs/a"), run_folder("idm_matern")
        ('outputs/a', 'outputs/idm_matern')
    """
    return str(Path("outputs") / run) if run in names() else run


def output_folder(kind: str, run: str, data: Mapping[str, Any] | None) -> str:
    """Where results of a run on some data go unless told: RUN/<kind>/<name of the data>.

    Example:
        >>> output_folder("calibration", "outputs/a", {"path": "in/i80.csv"})
        'outputs/a/calibration/i80'
        >>> output_folder("calibration", "outputs/a", {"path": "in/i80/*.csv"})
        'outputs/a/calibration/i80'
        >>> output_folder("calibration", "outputs/a", {"path": ["in/i80.csv", "in/lyft.csv"]})
        'outputs/a/calibration/i80_lyft'
    """
    found = (data or {}).get("path") or (data or {}).get("root") or "own"
    if not isinstance(found, str):
        found = "_".join(Path(str(part)).stem for part in found)
    place = Path(found)
    while set(place.name) & set("*?["):  # a glob is called after the folder it looks into
        place = place.parent
    return str(Path(run_folder(run)) / kind / (place.stem or "data"))


def register_resolvers() -> None:
    """Functions that files of conf/ may call: `${output_folder:KIND}`, `${run_folder:RUN}`."""
    from omegaconf import OmegaConf

    def resolve(kind: str, *, _root_: Any) -> str:
        data: Any = OmegaConf.to_container(_root_.data)
        return output_folder(kind, _root_.run, data)

    OmegaConf.register_new_resolver("output_folder", resolve, replace=True)
    OmegaConf.register_new_resolver("run_folder", run_folder, replace=True)


def quoted(path: str | Path) -> str:
    """A path as Hydra's override grammar wants it."""
    escaped = str(path).replace("'", "\\'")
    return f"'{escaped}'"


def override_text(value: Any) -> str:
    """A value in Hydra's override grammar.

    Example:
        >>> override_text({"a": [0.6, None, True], "b": "it's"})
        "{a:[0.6,null,true],b:'it\\\\'s'}"
    """
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{k}:{override_text(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(override_text, value)) + "]"
    return quoted(value) if isinstance(value, (str, Path)) else json.dumps(value)


def explain(error: BaseException, command: str) -> str | None:
    """What a user is told of an exception, in one line; None if it is a bug.

    Args:
        error: what was raised.
        command: whose config the arguments were for.
    """
    from hydra.errors import (
        HydraException,
        InstantiationException,
        MissingConfigException,
        OverrideParseException,
    )
    from omegaconf.errors import OmegaConfBaseException

    found = input_error(error)
    if found is not None:
        return str(found)
    if isinstance(error, InstantiationException):
        return None  # a component failed in its own code
    if isinstance(error, OverrideParseException):
        problem = str(error).splitlines()[0]
        return (
            f"{error.override}: not an override Hydra can read ({problem}); write KEY=VALUE, with "
            "single quotes around a value that holds commas, spaces or equals signs"
        )
    if isinstance(error, MissingConfigException):
        return _unknown_choice(error)
    missing = re.search(r"Missing mandatory value: ([\w.]+)", str(error))
    if isinstance(error, OmegaConfBaseException) and missing:
        return f"{missing[1]}: no value given; add {missing[1]}=VALUE"
    if isinstance(error, (HydraException, OmegaConfBaseException)):
        return _unknown_key(str(error), command) or _one_line(error)
    return None


def _unknown_choice(error: Any) -> str:
    group, _, name = str(error.missing_cfg_file or "").rpartition("/")
    options = [text for text in error.options or [] if text != "run"]
    if not group or not options:
        return _one_line(error)
    close = difflib.get_close_matches(name, options, 1)
    hint = f"did you mean {close[0]}? " if close else ""
    return f"{group}={name}: no such choice; {hint}expected one of {', '.join(options)}"


def _unknown_key(message: str, command: str) -> str | None:
    found = re.search(r"Could not override '([^']+)'|Key '([^']+)' not in", message)
    if found is None:
        return None
    key = found[1] or found[2]
    known = [*_keys(compose(command)), *_groups(command)]
    # A key of the same section first: training.round means training.rounds.
    if key in known:
        return f"{key}: a group, of which one file is chosen; write {key}=NAME"
    close = difflib.get_close_matches(key, known, 1)
    advice = f"did you mean {close[0]}?" if close else f"see asbc {command} --help"
    return f"{key}: no such setting; {advice}"


def _keys(node: Any, prefix: str = "") -> Iterator[str]:
    for key in node:
        name = f"{prefix}{key}"
        yield name
        value = node._get_node(key)
        if hasattr(value, "items") and not value._is_interpolation() and not value._is_missing():
            yield from _keys(value, f"{name}.")


def _groups(command: str) -> list[str]:
    import yaml

    defaults = yaml.safe_load((CONF / f"{command}.yaml").read_text()).get("defaults", [])
    entries = (next(iter(entry)) for entry in defaults if isinstance(entry, dict))
    return [name.split()[-1].strip("/") for name in entries]


def _one_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return "; ".join(lines[:2])


def _value(override: str) -> str:
    return override.partition("=")[2].strip("'\"")
