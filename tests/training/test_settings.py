"""Bad values anywhere in the config are refused, with their field, before any work starts."""

import copy
import re

import pytest
from omegaconf import OmegaConf

from asbc.config import compose
from asbc.errors import InputError
from asbc.training.settings import LoopSettings
from asbc.training.train import build_strategy


@pytest.fixture(scope="module")
def configs() -> dict[str, dict]:
    """The plain config of each strategy that is asked for."""
    composed = (compose("train", [f"acquisition={n}", "folder=x"]) for n in ("joint", "random"))
    plain = (OmegaConf.to_container(cfg, resolve=True) for cfg in composed)
    return {config["acquisition"]["name"]: config for config in plain}


def changed(config: dict, path: str, value: object) -> dict:
    config = copy.deepcopy(config)
    *parents, name = path.split(".")
    node = config
    for parent in parents:
        node = node[parent]
    assert name in node
    node[name] = value
    return config


def settings(config: dict) -> LoopSettings:
    return build_strategy(config)[1]


def test_a_good_config_gives_the_settings(configs):
    assert settings(configs["joint"]) == LoopSettings(**configs["joint"]["training"])


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("training.warmup_simulations", -1, "training.warmup_simulations=-1; expected a whole"),
        ("training.pairs_per_round", 0, "training.pairs_per_round=0"),
        ("training.pairs_per_round", 60_000, "more than the pool of 50000 pairs"),
        ("training.rounds", -2, "training.rounds=-2; expected a whole number of at least 0"),
        ("training.rounds", "many", "training.rounds=many"),
        ("training.rounds", 2.5, "training.rounds=2.5"),
        ("training.rounds", True, "training.rounds=True"),
        ("training.min_delta_rounds", -0.1, "training.min_delta_rounds=-0.1"),
        ("training.min_delta_rounds", float("nan"), "training.min_delta_rounds=nan"),
        ("acquisition.lambda_schedule", [1.0, 0.9], "acquisition.lambda_schedule has 2 entries"),
        ("acquisition.alpha_schedule", [0, 0.1, 1.2], "acquisition.alpha_schedule[2]=1.2"),
        ("acquisition.correction", "some", "acquisition.correction=some"),
        ("acquisition.candidates", 0, "acquisition.candidates=0"),
        ("acquisition.gamma", -1, "acquisition.gamma=-1"),
        ("acquisition.tau_theta", 0, "acquisition.tau_theta=0; expected a number above 0"),
        ("data.context_steps", 201, "data.context_steps=201 (40.2 s) is longer than the shortest"),
        ("data.context_steps", 1, "data.context_steps=1"),
        ("bank.synthetic_cap", 0, "bank.synthetic_cap=0, but acquisition.alpha_schedule asks"),
        ("seed", -1, "seed=-1"),
        ("threads", 0, "threads=0"),
    ],
)
def test_a_bad_value_is_refused_with_its_field(configs, field, value, message):
    with pytest.raises(InputError, match=re.escape(message)):
        settings(changed(configs["joint"], field, value))


def test_a_context_as_long_as_the_shortest_segment_is_fine(configs):
    settings(changed(configs["joint"], "data.context_steps", 200))


def test_a_strategy_without_a_pool_needs_none(configs):
    settings(changed(configs["random"], "training.pairs_per_round", 60_000))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("bank.stride=0", "bank.stride=0; expected a whole number of at least 1"),
        ("flow.layers=0", "flow.layers=0; expected a whole number of at least 1"),
        ("encoder.dropout=1", "encoder.dropout=1; expected a number of at least 0 and below 1"),
        ("estimator.learning_rate=0", "estimator.learning_rate=0; expected a number above 0"),
        ("transform.epsilon=-1", "transform.epsilon=-1; expected a number above 0"),
        ("+prior.overrides.v0.low=50", "prior of v0: range [50, 40.0]; expected low < high"),
        ("model.law.delta=0", "model.law.delta=0; expected a number above 0"),
        ("robust.drift=-1", "robust.drift=-1; expected a number of at least 0"),
        ("data.dt=0", "data.dt=0"),
    ],
)
def test_a_component_refuses_its_own_values(override, message, tiny, train_here, tmp_path):
    with pytest.raises(InputError, match=re.escape(message)):
        train_here([*tiny, override], tmp_path / "run")
    # Only the leader bank has to see the data first.
    assert (tmp_path / "run").exists() == override.startswith("bank.")
