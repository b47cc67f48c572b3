"""Every file under conf/ is composed with its root config, and what it names is built.

Files are found, not listed: a new one is tested here without a change.
"""

import inspect
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from asbc.arguments import offer_data_of_run, register_resolvers
from asbc.config import CONF, build, compose
from asbc.design.augment import Augmentation, Plausibility
from asbc.design.bank import LeaderBank
from asbc.evaluation.protocol import EvaluationSettings
from asbc.training.train import build_model, build_strategy

# Groups whose files change other groups: what they change is built.
GLOBAL = ("experiment", "debug")
# Groups that describe how to run and not what: composing is all there is.
COMPOSED = ("hydra", "hydra/launcher", "study")


def groups_of(root: str) -> set[str]:
    """Config groups that a root config names in its defaults."""
    defaults = yaml.safe_load((CONF / f"{root}.yaml").read_text()).get("defaults", [])
    names = (next(iter(entry)) for entry in defaults if isinstance(entry, dict))
    return {name.removeprefix("override ").removeprefix("optional ").strip("/") for name in names}


ROOTS = sorted(path.stem for path in CONF.glob("*.yaml"))
FILES = sorted(str(path.relative_to(CONF).with_suffix("")) for path in CONF.glob("*/**/*.yaml"))
CASES = [(r, f) for f in FILES for r in ROOTS if str(Path(f).parent) in groups_of(r)]


@pytest.fixture(autouse=True)
def as_a_command_would() -> None:
    """The choice `data=run`, and the functions that the files call."""
    offer_data_of_run([])
    register_resolvers()


def composed(root: str, overrides: list[str]) -> DictConfig:
    with initialize_config_dir(str(CONF.resolve()), version_base="1.3"):
        return hydra_compose(root, overrides, return_hydra_config=True)


def fill_in(node: Any) -> None:
    """Give a value wherever the user has to."""
    for name in node if isinstance(node, DictConfig) else ():
        if OmegaConf.is_missing(node, name):
            node[name] = "given"
        elif not OmegaConf.is_interpolation(node, name):
            fill_in(node[name])


def build_below(node: Any) -> int:
    """Build every outermost `_target_` below a node; returns how many."""
    if not isinstance(node, DictConfig):
        return 0
    if "_target_" in node:
        build(node)
        return 1
    return sum(build_below(node[name]) for name in node)


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
    for section in set(cfg) - {"hydra"}:
        fill_in(cfg._get_node(section))
    monkeypatch.setattr(HydraConfig.instance(), "cfg", cfg)
    monkeypatch.setenv("WANDB_MODE", "offline")
    if group in GLOBAL:
        plain = OmegaConf.masked_copy(cfg, [key for key in cfg if key != "hydra"])
        build_strategy(OmegaConf.to_container(plain, resolve=True))
        build_model(cfg)
        build_below(cfg.trainer)
    elif group not in COMPOSED:
        build_below(OmegaConf.select(cfg, group.replace("/", ".")))


def same_as(settings: Any, defaults: Any) -> bool:
    """Whether two dataclasses hold the same values, lists counting as tuples."""

    def plain(value: Any) -> Any:
        return tuple(value) if isinstance(value, list) else value

    return all(
        plain(getattr(settings, field.name)) == plain(getattr(defaults, field.name))
        for field in fields(defaults)
    )


@pytest.mark.parametrize("kind", [Augmentation, Plausibility])
def test_the_banks_config_states_the_defaults_of_its_parts(kind):
    section = {Augmentation: "augmentation", Plausibility: "filters"}[kind]
    cfg = compose("train").bank[section]
    assert set(cfg) - {"_target_"} == {field.name for field in fields(kind)}
    settings = build(cfg, _convert_="all")
    assert type(settings) is kind and same_as(settings, kind())


def test_the_banks_config_states_its_own_defaults():
    cfg, signature = compose("train").bank, inspect.signature(LeaderBank).parameters
    given = {name: value for name, value in cfg.items() if name in ("stride", "synthetic_cap")}
    assert given == {name: signature[name].default for name in given} and len(given) == 2
    assert {"pairs", *cfg} - {"_target_", "_partial_", "_convert_"} == set(signature)


def test_the_paper_protocol_is_the_default_of_the_settings():
    paper = build(compose("evaluate", ["run=x"]).evaluation)
    fast = build(compose("evaluate", ["run=x", "evaluation=fast"]).evaluation)
    assert paper == replace(EvaluationSettings(), pairs=[])
    assert fast.horizon == paper.horizon and fast.samples < paper.samples
    assert (paper.horizon, paper.stride, paper.max_windows, paper.samples) == (50, 20, 20, 500)
