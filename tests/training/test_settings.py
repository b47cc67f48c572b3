import copy
import re

import pytest

from asbc.errors import InputError
from asbc.training.settings import LoopSettings, validate

CONFIG = {
    "seed": 0,
    "threads": 1,
    "training": {
        "rounds": 2,
        "warmup_simulations": 4000,
        "pairs_per_round": 2000,
        "buffer_capacity": 4000,
        "max_tries": 20,
        "holdout_size": 200,
        "holdout_seed": 0,
        "batch_size": 128,
        "max_epochs": 100,
        "patience": 10,
        "min_rounds": 3,
        "patience_rounds": 1,
        "min_delta_rounds": 1e-3,
    },
    "acquisition": {
        "lambda_schedule": [1.0, 0.9, 0.8],
        "alpha_schedule": [0.0, 0.1, 0.2, 0.3],
        "subset_size": 32,
        "correction": "none",
        "candidates": 5000,
        "pairs_per_theta": 10,
        "gamma": 0.1,
        "tau_theta": 1.0,
    },
    "bank": {"stride": 50, "synthetic_cap": 10_000},
    "data": {"context_steps": 75, "dt": 0.2, "min_duration": 40.0},
}


def changed(path: str, value: object) -> dict:
    config = copy.deepcopy(CONFIG)
    *parents, name = path.split(".")
    node = config
    for parent in parents:
        node = node[parent]
    node[name] = value
    return config


def test_a_good_config_gives_the_settings():
    assert validate(CONFIG) == LoopSettings(**CONFIG["training"])


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
        ("acquisition.alpha_schedule", [0, 0.1, 1.2], r"acquisition.alpha_schedule[2] is 1.2"),
        ("acquisition.correction", "some", "acquisition.correction=some"),
        ("acquisition.candidates", 0, "acquisition.candidates=0"),
        ("acquisition.gamma", -1, "acquisition.gamma=-1"),
        ("acquisition.tau_theta", 0, "acquisition.tau_theta=0; expected a number above 0"),
        ("data.context_steps", 201, "data.context_steps=201 (40.2 s) is longer than the shortest"),
        ("data.context_steps", 1, "data.context_steps=1"),
        ("bank.synthetic_cap", 0, "bank.synthetic_cap=0, but acquisition.alpha_schedule asks"),
        ("bank.stride", 0, "bank.stride=0"),
        ("seed", -1, "seed=-1"),
        ("threads", 0, "threads=0"),
    ],
)
def test_a_bad_value_is_refused_with_its_field(field, value, message):
    with pytest.raises(InputError, match=re.escape(message)):
        validate(changed(field, value))


def test_a_context_as_long_as_the_shortest_segment_is_fine():
    validate(changed("data.context_steps", 200))


def test_a_strategy_without_a_pool_needs_none():
    config = changed("training.pairs_per_round", 60_000)
    del config["acquisition"]["candidates"]
    validate(config)
