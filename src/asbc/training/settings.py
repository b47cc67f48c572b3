"""Settings of the loop and checks of the whole config, before any work starts."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from asbc.design.correction import correction
from asbc.design.schedules import check_schedule
from asbc.utils.checks import InputError


@dataclass(frozen=True, kw_only=True)
class LoopSettings:
    """Budget and stopping rules of the active loop; a bad value fails here, naming its field."""

    rounds: int  # active rounds at most, after the warm-up (round 0)
    warmup_simulations: int
    pairs_per_round: int
    buffer_capacity: int
    max_tries: int  # times an unusable simulation is replaced
    holdout_size: int
    holdout_seed: int
    batch_size: int
    max_epochs: int  # per round
    patience: int  # epochs without improvement that end a round
    min_rounds: int  # active rounds before the loop may stop
    patience_rounds: int  # rounds without improvement that end the loop
    min_delta_rounds: float  # decrease of the hold-out loss that counts as improvement

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "min_delta_rounds":
                check_number("training.min_delta_rounds", value, minimum=0)
            else:
                may_be_zero = field.name in ("rounds", "min_rounds", "holdout_seed")
                check_integer(f"training.{field.name}", value, minimum=0 if may_be_zero else 1)


def validate(config: Mapping[str, Any]) -> LoopSettings:
    """The loop's settings; raises, naming the field, if anything in the config cannot work."""
    settings = _loop_settings(config["training"], config["acquisition"])
    check_integer("seed", config["seed"], minimum=0)
    check_integer("threads", config["threads"], minimum=1)
    _check_acquisition(config["acquisition"], settings)
    _check_bank(config["bank"], config["acquisition"], settings)
    _check_context(config["data"])
    return settings


def _loop_settings(training: Mapping[str, Any], acquisition: Mapping[str, Any]) -> LoopSettings:
    """The settings as given; a stream's rounds are the chunks that its budget pays for."""
    if "chunk" not in acquisition:
        return LoopSettings(**training)
    for name in ("chunk", "simulations"):
        check_integer(f"acquisition.{name}", acquisition[name], minimum=1)
    if training["rounds"] is not None:
        raise InputError(
            f"training.rounds={training['rounds']}; a stream is as long as its budget says, set "
            "acquisition.simulations or acquisition.minutes"
        )
    rounds = max(1, round(acquisition["simulations"] / acquisition["chunk"])) - 1
    return LoopSettings(**{**training, "rounds": rounds, "min_rounds": rounds})


def _check_acquisition(acquisition: Mapping[str, Any], settings: LoopSettings) -> None:
    correction(acquisition["correction"])
    for name in ("lambda_schedule", "alpha_schedule"):
        if name in acquisition:
            check_schedule(f"acquisition.{name}", acquisition[name], settings.rounds)
    sizes = (
        *("subset_size", "samples_per_trajectory", "candidates", "window_candidates"),
        *("pairs_per_theta", "members", "neighbours"),
    )
    for name in sizes:
        if name in acquisition:
            check_integer(f"acquisition.{name}", acquisition[name], minimum=1)
    for name in ("tau_leader", "tau_theta", "uncertainty_epsilon", "neighbour_epsilon"):
        if name in acquisition:
            check_number(f"acquisition.{name}", acquisition[name], above=0)
    for name in ("lambda_share", "alpha_share"):
        if name in acquisition:
            check_schedule(f"acquisition.{name}", [acquisition[name]], rounds=0)
    if acquisition.get("minutes") is not None:
        check_number("acquisition.minutes", acquisition["minutes"], above=0)
    if "gamma" in acquisition:
        check_number("acquisition.gamma", acquisition["gamma"], minimum=0)
    if "candidates" in acquisition:
        pool = acquisition["candidates"] * acquisition.get("pairs_per_theta", 1)
        if settings.pairs_per_round > pool:
            raise InputError(
                f"training.pairs_per_round={settings.pairs_per_round} is more than the pool of "
                f"{pool} pairs; raise acquisition.candidates"
            )


def _check_bank(
    bank: Mapping[str, Any], acquisition: Mapping[str, Any], settings: LoopSettings
) -> None:
    check_integer("bank.stride", bank["stride"], minimum=1)
    check_integer("bank.synthetic_cap", bank["synthetic_cap"], minimum=0)
    shares = acquisition.get("alpha_schedule", ())[1 : settings.rounds + 1]
    if bank["synthetic_cap"] == 0 and any(shares):
        raise InputError(
            "bank.synthetic_cap=0, but acquisition.alpha_schedule asks for synthetic windows; "
            "set the schedule to zeros or the cap above 0"
        )


def _check_context(data: Mapping[str, Any]) -> None:
    steps, dt, shortest = data["context_steps"], data["dt"], data["min_duration"]
    check_integer("data.context_steps", steps, minimum=2)
    if steps * dt > shortest * (1 + 1e-9):
        raise InputError(
            f"data.context_steps={steps} ({steps * dt:g} s) is longer than the shortest segment "
            f"kept (data.min_duration={shortest:g} s); lower the one or raise the other"
        )


def check_integer(field: str, value: object, minimum: int) -> None:
    """Raise unless `value` is a whole number of at least `minimum`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise InputError(f"{field}={value}; expected a whole number of at least {minimum}")


def check_number(
    field: str, value: object, minimum: float = -math.inf, above: float = -math.inf
) -> None:
    """Raise unless `value` is a finite number >= `minimum` and > `above`."""
    number = math.nan
    if isinstance(value, int | float) and not isinstance(value, bool):
        number = float(value)
    if not (math.isfinite(number) and number >= minimum and number > above):
        bound = f"above {above:g}" if above > -math.inf else f"of at least {minimum:g}"
        raise InputError(f"{field}={value}; expected a number {bound}")
