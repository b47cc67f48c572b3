"""Commands in the docs compose and run, links lead somewhere, nothing is left to fill in."""

import re
import shlex
import shutil
from pathlib import Path

import pytest
import yaml
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from asbc.arguments import register_resolvers
from asbc.commands import COMMANDS
from asbc.config import CONF, offer_data

ROOT = Path(__file__).parents[2]
register_resolvers()
PAIRS = yaml.safe_load((CONF / "data" / "pairs.yaml").read_text())
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
COMMAND = re.compile(r"(?<![\w/])(asbc \w+|python [\w/]+\.py)([^`\n#)]*)")


def commands() -> list[tuple[str, str]]:
    """Command and arguments of every `asbc X ...` and `python X.py ...` in a page, each once."""
    found = {}
    for page in PAGES:
        for name, arguments in COMMAND.findall(page.read_text()):
            words = name.removeprefix("asbc ").removeprefix("python ")
            command = words.removesuffix(".py") if "/" not in words else words
            if command in COMMANDS or command.endswith(".py"):
                found[command, arguments.strip()] = None
    return list(found)


def one_job(arguments: list[str]) -> list[str]:
    """The overrides of a sweep's first job."""
    overrides = OverridesParser.create().parse_overrides(arguments)
    texts = []
    for override in overrides:
        if override.is_sweep_override():
            first = next(override.sweep_iterator())
            texts.append(f"{override.get_key_element()}={first}")
        else:
            texts.append(override.input_line)
    return texts


@pytest.mark.parametrize(("command", "arguments"), commands(), ids=str)
def test_a_command_in_the_documentation_composes(command, arguments):
    offer_data(PAIRS)  # here, as other tests of this process offer other data
    given = [text for text in shlex.split(arguments) if text not in ("-m", "--multirun")]
    if command.endswith(".py"):  # argparse
        known = set(re.findall(r'"(--[\w-]+)"', (ROOT / command).read_text()))
        assert {text for text in given if text.startswith("--")} <= known
        return
    if any(text.startswith("-") for text in given) or any("|" in text for text in given):
        return  # Hydra's own flags; a list of choices
    given = [text for text in given if text not in ("...", "(")]
    with initialize_config_dir(str(CONF.resolve()), version_base="1.3"):
        compose(command, one_job(given), return_hydra_config=True)


# Settings that make a command small, as far as its config has them.
SMALL = {
    "data.context_steps": 20,
    "data.min_duration": 8,
    "objective.horizon": 12,
    "objective.steps": 2,
    "objective.validation_draws": 8,
    "bank.synthetic_cap": 100,
    "bank.stride": 10,
    "training.warmup_simulations": 48,
    "training.pairs_per_round": 48,
    "training.buffer_capacity": 48,
    "training.holdout_size": 30,
    "training.batch_size": 16,
    "training.max_epochs": 1,
    "encoder.model_dim": 8,
    "encoder.layers": 1,
    "encoder.heads": 2,
    "flow.layers": 2,
    "flow.hidden": 8,
    "acquisition.subset_size": 3,
    "acquisition.samples_per_trajectory": 20,
    "acquisition.candidates": 100,
    "acquisition.window_candidates": 50,
    "acquisition.members": 3,
    "acquisition.chunk": 48,
    "acquisition.simulations": 96,
    "evaluation.horizon": 20,
    "evaluation.samples": 15,
    "evaluation.bootstrap": 10,
    "evaluation.simulated_drivers": 30,
    "evaluation.posterior_draws": 19,
    "nuts.chains": 2,
    "nuts.warmup": 60,
    "nuts.draws": 40,
    "calibration.samples": 40,
    "samples": 10,
    "scenario.ring.duration": 80,
    "scenario.warm_up": 20,
    "scenario.cell_duration": 20,
    "scenario.sweep_vehicles": [8],
    "scenario.sweep_duration": 60,
    "scenario.replications": 2,
}
# What the pages leave to the reader; recordings that cannot be shipped are in tests/data.
BEYOND = (
    *("data=highd", "data=ngsim", "OTHER_RUN", "population=RUN", "...", "scenario=sumo"),
    *("YOUR_CONF", "|", "engine=ray", "init=RUN", "compare_run=[", "accelerator=gpu"),
)


def runnable() -> list[tuple[str, str]]:
    """The commands of one process that need no more than a pairs file and a trained run."""
    names = ("train", "evaluate", "baseline", "calibrate", "simulate")
    flags = re.compile(r"(^| )-(?!m |-multirun )")
    return [
        (command, arguments)
        for command, arguments in commands()
        if command in names
        and (command != "evaluate" or "run=" in arguments)  # else it is only named
        and not flags.search(arguments)
        and not any(text in arguments for text in BEYOND)
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("command", "arguments"), runnable(), ids=str)
def test_a_command_in_the_documentation_runs(
    command, arguments, run_command, tiny, tiny_pairs, trained, tmp_path
):
    """Everything but its size is as the page says; the first job of a sweep stands for all."""
    offer_data(PAIRS)
    several = ["history=segments"] if "evaluation.context=all" in arguments else []
    run = shutil.copytree(trained("transform=bounded", *several), tmp_path / "trained")
    given = one_job([text for text in shlex.split(arguments) if text != "-m"])
    given = [text for text in given if not text.startswith(("hydra", "data", "ckpt_path=last"))]
    given = [re.sub(r"\bRUN\b", str(run), text) for text in given]
    own_data = command in ("train", "baseline", "calibrate") or "data=pairs" in arguments
    resumed = "ckpt_path=RUN" in arguments
    tuned = "experiment=tuned" in arguments  # goes on from a shipped model, which is not tiny
    tiny_data = own_data and not resumed and not tuned
    given += ["data=pairs", f"data.path={tiny_pairs}"] if tiny_data else []
    if resumed:  # as it was trained
        given += [*tiny, "transform=bounded", f"hydra.run.dir={run}"]
    else:
        with initialize_config_dir(str(CONF.resolve()), version_base="1.3"):
            config = compose(command, given)
        given += [
            f"{key}={value}"
            for key, value in SMALL.items()
            if OmegaConf.select(config, key) is not None
            and not (tuned and key.startswith(("data.", "encoder.", "flow.")))
        ]
        if OmegaConf.select(config, "training.rounds") is not None:
            given.append("training.rounds=1")
    log = tmp_path / "log"
    assert run_command(command, given, log=log) == 0, log.read_text()[-2000:]


def test_the_documentation_has_commands():
    assert len(commands()) > 15


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        assert target.startswith("http") or (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_named_in_the_text_exist(page):
    for name in re.findall(r"`((?:src|conf|tests|scripts)/[\w/.]+)`", page.read_text()):
        assert (ROOT / name).exists() or name.isupper() or "NAME" in name, name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_nothing_is_left_to_fill_in(page):
    text = page.read_text()
    assert not re.search(r"\b(TODO|TBD|FIXME|[A-Z]+_TABLE)\b", text)
    for name, block in re.findall(r"<!-- (\w+) -->\n(.*?)<!-- end -->", text, flags=re.S):
        assert block.strip(), f"{name} is written by a command and is empty"


def test_the_readme_shows_at_most_eight_rows_of_results():
    [block] = re.findall(
        r"<!-- results -->\n(.*?)<!-- end -->", (ROOT / "README.md").read_text(), flags=re.S
    )
    assert 3 <= len(block.strip().splitlines()) <= 2 + 8


def test_the_config_of_a_command_is_shown(run_command, tmp_path):
    log = tmp_path / "config"
    assert run_command("train", ["--cfg", "job", "experiment=smoke"], log=log) == 0
    assert "rounds: 2" in log.read_text()
