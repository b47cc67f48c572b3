"""Settings of the loop, and checks of what has to fit together, before any work starts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any, Protocol

from asbc.data.source import Splits
from asbc.design.acquisition import Acquisition, RandomAcquisition, StreamAcquisition
from asbc.design.joint import JointAcquisition, ThetaAcquisition
from asbc.design.targeted import TargetedAcquisition
from asbc.errors import InputError
from asbc.posterior.segment_pool import SegmentPool
from asbc.run import Run
from asbc.simulator import Simulator
from asbc.utils.checks import check_integer, check_number

if TYPE_CHECKING:
    from asbc.training.loop import RoundCallback

STRATEGIES = (
    *(RandomAcquisition, StreamAcquisition, ThetaAcquisition, JointAcquisition),
    TargetedAcquisition,
)
# What training.symmetry may be.
SYMMETRY = (True, False, "auto")


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
    go_on: bool = False  # to the last round; what the stopping rule selected is kept all the same
    steps: int | Sequence[int] | None = None  # gradient steps of the run, or by round
    symmetry: bool | str = False  # rescale simulations each epoch; auto: where that is exact

    def __post_init__(self) -> None:
        for field in fields(self):
            value, name = getattr(self, field.name), f"training.{field.name}"
            if field.name == "go_on":
                _check_choice(name, value, (True, False))
            elif field.name == "symmetry":
                _check_choice(name, value, SYMMETRY)
            elif field.name == "min_delta_rounds":
                check_number(name, value, minimum=0)
            elif field.name != "steps":
                may_be_zero = field.name in ("rounds", "min_rounds", "holdout_seed")
                check_integer(name, value, minimum=0 if may_be_zero else 1)
        self._check_steps()

    def _check_steps(self) -> None:
        if isinstance(self.steps, int) or self.steps is None:
            if self.steps is not None:
                check_integer("training.steps", self.steps, minimum=self.rounds + 1)
            return
        if isinstance(self.steps, str) or len(self.steps) != self.rounds + 1:
            raise InputError(
                f"training.steps={self.steps}; expected a number, or {self.rounds + 1} of them: "
                "one for the warm-up and one for each round"
            )
        for round, steps in enumerate(self.steps):
            check_integer(f"training.steps[{round}]", steps, minimum=1)

    def round_steps(self, round: int) -> int | None:
        """Gradient steps of a round; None where its early stopping ends it.

        A number is split evenly, what is left over going to the first rounds.
        """
        if self.steps is None or not isinstance(self.steps, int):
            return None if self.steps is None else self.steps[round]
        each, over = divmod(self.steps, self.rounds + 1)
        return each + (round < over)


class Stage(Protocol):
    """A callback that goes on training when the loop has ended."""

    finished: bool


class Objective(Protocol):
    """What a posterior is trained for; built from a file of the config group `objective`."""

    def stage(
        self,
        loop: "RoundCallback",
        simulator: Simulator,
        splits: Splits,
        context_steps: int,
        pool: SegmentPool | None,
        seed: int,
        run: Run,
    ) -> Stage | None: ...


@dataclass(frozen=True)
class Simulated:
    """The paper's: the exact posterior of simulated drivers. Nothing follows the loop."""

    name: str = "simulated"
    learned_residual: int = 0

    def __post_init__(self) -> None:
        if self.learned_residual:
            raise InputError(
                f"objective.learned_residual={self.learned_residual}: there are no recorded "
                "drivers to learn it from; use objective=predictive, or 0"
            )

    def stage(self, *_: Any) -> None:
        """None."""


def _check_choice(field: str, value: object, choices: Sequence[object]) -> None:
    # 1 == True, but a number is no answer to a question.
    if not any(
        value is choice or (isinstance(value, str) and value == choice) for choice in choices
    ):
        shown = ", ".join(str(choice).lower() for choice in choices)
        raise InputError(f"{field}={value}; expected one of {shown}")


def own_values(strategy: type, section: Mapping[str, Any]) -> dict[str, Any]:
    """A config section without the sizes that an experiment sets for other strategies.

    `experiment=smoke` makes every strategy small, and so names what only some of them have. What
    no strategy has stays, for the strategy to refuse.
    """
    own = {field.name for field in fields(strategy)} if is_dataclass(strategy) else set(section)
    others = {field.name for kind in STRATEGIES for field in fields(kind)}
    return {name: value for name, value in section.items() if name in own or name not in others}


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
    _check_context(config["data"], config["history"]["law"])
    return settings


def _check_context(data: Mapping[str, Any], law: Mapping[str, Any] | None) -> None:
    steps, dt, shortest = data["context_steps"], data["dt"], data["min_duration"]
    check_integer("data.context_steps", steps, minimum=2)
    if law is not None:
        if law["shortest"] > shortest * (1 + 1e-9):
            raise InputError(
                f"history.shortest={law['shortest']:g} s is longer than the shortest pair kept "
                f"(data.min_duration={shortest:g} s); lower the one or raise the other"
            )
    elif steps * dt > shortest * (1 + 1e-9):
        raise InputError(
            f"data.context_steps={steps} ({steps * dt:g} s) is longer than the shortest segment "
            f"kept (data.min_duration={shortest:g} s); lower the one or raise the other"
        )
