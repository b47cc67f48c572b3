"""Every data config composes, and builds a source whose settings are the documented defaults."""

from dataclasses import fields

import pytest
from omegaconf import OmegaConf

from asbc.config import CONF, compose
from asbc.config import build as build_section
from asbc.data.highd import HighD
from asbc.data.ngsim import NGSIM
from asbc.data.pairs_file import PairsFile
from asbc.data.source import DataSource
from asbc.data.synthetic.dataset import Synthetic

# Our own sources, whose files state what the classes do by default.
GROUPS = {
    "synthetic": (Synthetic, []),
    "highd": (HighD, ["data.root=DIR"]),
    "ngsim": (NGSIM, ["data.root=FILE"]),
    "pairs": (PairsFile, ["data.path=FILE"]),
}


def build(group: str, overrides: list[str]) -> DataSource:
    return build_section(compose(f"data/{group}", overrides).data)


@pytest.mark.parametrize("group", sorted(path.stem for path in (CONF / "data").glob("*.yaml")))
def test_every_file_builds_a_source(group):
    section = compose(f"data/{group}").data
    for name in [name for name in section if OmegaConf.is_missing(section, name)]:
        section[name] = "FILE"
    assert isinstance(build_section(section), DataSource)


@pytest.mark.parametrize("group", GROUPS)
def test_configs_state_the_defaults(group, monkeypatch):
    monkeypatch.delenv("ASBC_CACHE", raising=False)
    kind, overrides = GROUPS[group]
    source = build(group, overrides)
    assert type(source) is kind
    written = OmegaConf.load(CONF / "data" / f"{group}.yaml")
    assert {field.name for field in fields(kind)} == set(written) - {"_target_", "_convert_"}
    given = {name.split("=")[0].removeprefix("data."): name.split("=")[1] for name in overrides}
    for name, value in vars(kind(**given)).items():
        found = getattr(source, name)
        assert (list(found) if isinstance(found, (list, tuple)) else found) == (
            list(value) if isinstance(value, (list, tuple)) else value
        )
        assert not OmegaConf.is_config(found)


def test_overrides_and_cache_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("ASBC_CACHE", str(tmp_path))
    source = build("highd", ["data.root=DIR", "data.context_steps=50", "data.split=[0.5,0.2,0.3]"])
    assert (source.context_steps, source.cache_dir) == (50, str(tmp_path))
    assert list(source.split) == [0.5, 0.2, 0.3]


def test_pairs_file_through_its_config(make_table, tmp_path):
    make_table(pairs=10).to_csv(tmp_path / "mine.csv", index=False)
    splits = build("pairs", [f"data.path={tmp_path / 'mine.csv'}"]).splits()
    assert [len(p) for p in (splits.train, splits.validation, splits.test)] == [6, 1, 3]
