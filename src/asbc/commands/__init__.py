"""`asbc NAME ...`: one module per command, all started here.

A user's mistake is one line and exit code 2; a bug shows its traceback. `ASBC_DEBUG=1` shows it
for mistakes as well.
"""

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from asbc.arguments import explain, register_resolvers
from asbc.config import CONF

COMMANDS = {
    "train": "train a posterior estimator",
    "evaluate": "score a trained run on held-out drivers",
    "baseline": "fit and score a method to compare with",
    "calibrate": "a posterior for every driver of a file",
    "page": "a page that calibrates drivers in a browser",
    "models": "the models inside the package, and their cards",
    "simulate": "traffic of a calibrated population",
    "report": "tables and figures over many runs",
    "study": "many runs, made and reported at one command",
}
USAGE = 2  # exit code of a mistake


def main(arguments: Sequence[str] | None = None) -> None:
    """The console script: the first argument is the command."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] in ("-h", "--help", "help"):
        print(overview())
    elif given[0] == "--version":
        from importlib.metadata import version

        print(version("asbc"))
    elif given[0] in COMMANDS:
        try:
            start(given[0], given[1:])
            sys.stdout.flush()
        except BrokenPipeError:
            _leave_without_reader()
    else:
        names = ", ".join(COMMANDS)
        print(f"error: {given[0]}: no such command; expected one of {names}", file=sys.stderr)
        sys.exit(USAGE)


def start(name: str, arguments: Sequence[str]) -> None:
    """Run one command with its arguments; leaves by SystemExit if they cannot be used."""
    from hydra import main as hydra_main

    module = importlib.import_module(f"asbc.commands.{name}")
    register_resolvers()
    # Exceptions reach us whole instead of being printed by Hydra.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        prepare: Callable[[Sequence[str]], list[str]] = getattr(module, "prepare", list)
        sys.argv = [f"asbc {name}", *prepare(arguments)]
        task = hydra_main(version_base="1.3", config_path=str(CONF.resolve()), config_name=name)
        task(_guarded(module.main, name))()
    except Exception as error:
        _leave(error, name)


def overview() -> str:
    """All commands, a line each."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {text}" for name, text in COMMANDS.items()]
    return "\n".join(
        ["usage: asbc COMMAND [KEY=VALUE ...]", "", *lines, "", "asbc COMMAND --help says more"]
    )


def _guarded(task: Callable[[Any], Any], name: str) -> Callable[[Any], Any]:
    """The task, which ends with one line on a mistake; jobs of a sweep leave that to the end."""

    @wraps(task)
    def guarded(cfg: Any) -> Any:
        from hydra.core.hydra_config import HydraConfig
        from hydra.types import RunMode

        try:
            result = task(cfg)
            sys.stdout.flush()
            return result
        except BrokenPipeError:  # here as well: Hydra would say so, or hide it
            _leave_without_reader()
        except Exception as error:
            if HydraConfig.get().mode == RunMode.MULTIRUN:
                raise
            _leave(error, name)

    return guarded


def _leave_without_reader() -> None:
    """Leave quietly: whoever reads has seen enough, as in `asbc models | head`."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(1)


def _leave(error: Exception, name: str) -> None:
    message = explain(error, name)
    if message is None or os.environ.get("ASBC_DEBUG") == "1":
        raise error
    print(f"error: {message}", file=sys.stderr)
    sys.exit(USAGE)
