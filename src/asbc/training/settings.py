"""Settings of the loop, and checks of what has to fit together, before any work starts."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from asbc.design.acquisition import Acquisition
from asbc.errors import InputError
from asbc.utils.checks import check_integer, check_number


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


def loop_settings(config: Mapping[str, Any], acquisition: Acquisition) -> LoopSettings:
    """The loop's settings; raises, naming the field, if anything in the config cannot work.

    Args:
        config: the whole, resolved.
        acquisition: the strategy built from it, which may know the number of rounds itself.
    """
    training = dict(config["training"])
    rounds = acquisition.rounds(training["rounds"])
    if rounds != training["rounds"]:  # the strategy's own: no rule may end the loop before
        training |= {"rounds": rounds, "min_rounds": rounds}
    settings = LoopSettings(**training)
    check_integer("seed", config["seed"], minimum=0)
    check_integer("threads", config["threads"], minimum=1)
    acquisition.check(settings.rounds, settings.pairs_per_round, config["bank"]["synthetic_cap"])
    _check_context(config["data"])
    return settings


def _check_context(data: Mapping[str, Any]) -> None:
    steps, dt, shortest = data["context_steps"], data["dt"], data["min_duration"]
    check_integer("data.context_steps", steps, minimum=2)
    if steps * dt > shortest * (1 + 1e-9):
        raise InputError(
            f"data.context_steps={steps} ({steps * dt:g} s) is longer than the shortest segment "
            f"kept (data.min_duration={shortest:g} s); lower the one or raise the other"
        )
