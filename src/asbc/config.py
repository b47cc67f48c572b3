"""Where the configuration lives, and how a part of it becomes an object."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asbc.errors import InputError

if TYPE_CHECKING:
    from omegaconf import DictConfig

# The tree's own conf/: a link in the source tree, a folder of the package in a wheel.
CONF = Path(__file__).parent / "conf"
# Packages besides ours whose classes a run folder may name, separated by colons.
PLUGINS = "ASBC_PLUGINS"


def compose(root: str, overrides: Sequence[str] = ()) -> "DictConfig":
    """The config of a command, as its command line would give it.

    Example:
        >>> compose("train", ["residual=matern"]).residual.name
        'matern'
    """
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.core.config_store import ConfigStore
    from hydra.core.global_hydra import GlobalHydra

    if "run.yaml" not in ConfigStore.instance().repo.get("data", {}):
        offer_data({})
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(CONF.resolve()), version_base="1.3"):
        return hydra_compose(root, list(overrides))


def offer_data(section: Mapping[str, Any]) -> None:
    """Make a data section the choice `data=run`, the default of commands that use a run."""
    from hydra.core.config_store import ConfigStore

    ConfigStore.instance().store(group="data", name="run", node=dict(section), provider="asbc")


def build(section: Any, **arguments: Any) -> Any:
    """The object that a config section describes; bad values are the user's to mend.

    Raises:
        InputError: if the object refused its values.
    """
    from hydra.errors import InstantiationException
    from hydra.utils import instantiate

    try:
        return instantiate(section, **arguments)
    except InstantiationException as error:
        cause = input_error(error)
        if cause is None:
            raise
        raise cause from error


def input_error(error: BaseException | None) -> InputError | None:
    """The first InputError among an exception and its causes."""
    while error is not None:
        if isinstance(error, InputError):
            return error
        error = error.__cause__ or error.__context__
    return None


def require_trusted(config: Mapping[str, Any], where: str) -> None:
    """Raise if a config that came with a run folder names code that is not ours.

    Building an object calls what `_target_` names, and a folder may come from anywhere.
    """
    trusted = ("asbc", *filter(None, os.environ.get(PLUGINS, "").split(":")))
    for target in _targets(config):
        if target.partition(".")[0] not in trusted:
            raise InputError(
                f"{where}: its config.yaml names {target}, which is not part of asbc; if you "
                f"trust it, set {PLUGINS}={target.partition('.')[0]}"
            )


def _targets(node: Any) -> Iterator[str]:
    if isinstance(node, Mapping):
        for key, value in node.items():
            if key == "_target_":
                yield str(value)
            else:
                yield from _targets(value)
    elif isinstance(node, (list, tuple)):
        for value in node:
            yield from _targets(value)
