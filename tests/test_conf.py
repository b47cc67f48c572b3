"""Every file under conf/ is composed with its root config, and what it names is built."""

from pathlib import Path

import pytest
import yaml
from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

CONF = Path(__file__).parents[1] / "conf"
# Values without a default, which the user has to give.
GIVEN = {"data.path": "pairs.csv", "data.root": "data"}


def groups_of(root: str) -> set[str]:
    """Config groups that a root config names in its defaults."""
    defaults = yaml.safe_load((CONF / f"{root}.yaml").read_text()).get("defaults", [])
    names = (next(iter(entry)) for entry in defaults if isinstance(entry, dict))
    return {name.removeprefix("override ").removeprefix("optional ").strip("/") for name in names}


ROOTS = sorted(path.stem for path in CONF.glob("*.yaml"))
FILES = sorted(str(path.relative_to(CONF).with_suffix("")) for path in CONF.glob("*/**/*.yaml"))
CASES = [(r, f) for f in FILES for r in ROOTS if str(Path(f).parent) in groups_of(r)]


def composed(root: str, overrides: list[str]) -> DictConfig:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose(root, overrides, return_hydra_config=True)


def build(node: object) -> int:
    """Instantiate every outermost `_target_` below a node; returns how many."""
    if isinstance(node, DictConfig):
        if "_target_" in node:
            instantiate(node)
            return 1
        return sum(build(node[name]) for name in node)
    return 0


@pytest.mark.parametrize("root", ROOTS)
def test_root_composes(root):
    composed(root, [])


def test_every_file_belongs_to_a_root_config():
    unused = set(FILES) - {file for _, file in CASES}
    assert not unused, f"no root config has a group for {sorted(unused)}"


@pytest.mark.parametrize(("root", "file"), CASES, ids=lambda value: value)
def test_file_composes_and_its_objects_are_built(root, file, tmp_path, monkeypatch):
    group, name = str(Path(file).parent), Path(file).name
    cfg = composed(root, [f"{group}={name}", f"hydra.runtime.output_dir={tmp_path}"])
    for key, value in GIVEN.items():
        if OmegaConf.is_missing(cfg.get("data", OmegaConf.create()), key.removeprefix("data.")):
            OmegaConf.update(cfg, key, value)
    monkeypatch.setattr(HydraConfig.instance(), "cfg", cfg)
    monkeypatch.setenv("WANDB_MODE", "offline")
    if group not in ("hydra", "experiment", "debug"):
        build(OmegaConf.select(cfg, group.replace("/", ".")))
