"""Commands in the documentation compose, links lead somewhere, the reference is current."""

import re
import runpy
import shlex
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "configuration.md"
PAGES = [ROOT / "README.md", *sorted(set((ROOT / "docs").glob("*.md")) - {REFERENCE})]
COMMAND = re.compile(r"python ((?:scripts/)?\w+\.py)([^`\n#)]*)")


def commands() -> list[tuple[str, str]]:
    """Script and arguments of every `python X.py ...` in a page, each once."""
    found = {}
    for page in PAGES:
        for script, arguments in COMMAND.findall(page.read_text()):
            found[script, arguments.strip()] = None
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


@pytest.mark.parametrize(("script", "arguments"), commands(), ids=str)
def test_a_command_in_the_documentation_composes(script, arguments):
    assert (ROOT / script).is_file()
    given = [text for text in shlex.split(arguments) if text not in ("-m", "--multirun")]
    if script.startswith("scripts/"):  # argparse
        known = set(re.findall(r'"(--[\w-]+)"', (ROOT / script).read_text()))
        assert {text for text in given if text.startswith("--")} <= known
        return
    if any(text.startswith("-") for text in given):
        return  # Hydra's own flags
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        compose(script.removesuffix(".py"), one_job(given), return_hydra_config=True)


# Settings that make a command small, as far as its config has them.
SMALL = {
    "data.context_steps": 20,
    "data.min_duration": 8,
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
    "calibration.simulated_drivers": 60,
    "samples": 10,
    "scenario.ring.duration": 80,
    "scenario.warm_up": 20,
    "scenario.cell_duration": 20,
    "scenario.sweep_vehicles": [8],
    "scenario.sweep_duration": 60,
    "scenario.replications": 2,
}
# What the pages leave to the reader; recordings that cannot be shipped are in tests/data.
BEYOND = ("data=highd", "data=ngsim", "OTHER_RUN", "population=RUN", "...", "scenario=sumo")


def runnable() -> list[tuple[str, str]]:
    """The commands of one process that need no more than a pairs file and a trained run."""
    scripts = ("train.py", "evaluate.py", "baseline.py", "calibrate.py", "simulate.py")
    flags = re.compile(r"(^| )-(?!m |-multirun )")
    return [
        (script, arguments)
        for script, arguments in commands()
        if script in scripts
        and not flags.search(arguments)
        and not any(text in arguments for text in BEYOND)
    ]


@pytest.fixture(scope="module")
def trained_runs() -> dict[str, Path]:
    """Where the run behind `run=RUN` is, once it is there."""
    return {}


@pytest.mark.slow
@pytest.mark.parametrize(("script", "arguments"), runnable(), ids=str)
def test_a_command_in_the_documentation_runs(
    script, arguments, run_script, tiny, tiny_pairs, trained_runs, tmp_path, tmp_path_factory
):
    """Everything but its size is as the page says; the first job of a sweep stands for all."""
    if not trained_runs:
        trained_runs["RUN"] = tmp_path_factory.mktemp("trained") / "run"
        folder = f"hydra.run.dir={trained_runs['RUN']}"
        assert run_script("train.py", [*tiny, "transform=bounded", folder]) == 0
    run = str(trained_runs["RUN"])
    given = one_job([text for text in shlex.split(arguments) if text != "-m"])
    given = [text for text in given if not text.startswith(("hydra", "data", "ckpt_path=last"))]
    given = [re.sub(r"RUN(_DIR)?\b", run, text) for text in given]
    data = ["data=pairs", f"data.path={tiny_pairs}"]
    own_data = script in ("train.py", "baseline.py") or "data=pairs" in arguments
    resumed = "ckpt_path=RUN" in arguments
    given += data if own_data and not resumed else []
    if resumed:  # as it was trained
        given += [*tiny, "transform=bounded", f"hydra.run.dir={run}"]
    else:
        with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
            config = compose(script.removesuffix(".py"), given)
        given += [
            f"{key}={value}"
            for key, value in SMALL.items()
            if OmegaConf.select(config, key) is not None
        ]
        if OmegaConf.select(config, "training.rounds") is not None:
            given.append("training.rounds=1")
    log = tmp_path / "log"
    assert run_script(script, given, log=log) == 0, log.read_text()[-2000:]


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


def test_the_configuration_reference_is_current():
    script = runpy.run_path(str(ROOT / "scripts" / "config_reference.py"))
    assert REFERENCE.read_text() == script["reference"](), "run python scripts/config_reference.py"


def test_the_cheap_commands_run(run_script, tmp_path):
    """Those that need neither data nor training; trained ones are in tests/integration."""
    for script in ("train.py", "evaluate.py", "report.py", "study.py"):
        log = tmp_path / script
        assert run_script(script, ["--help"], log=log) == 0
        assert "configuration" in log.read_text().lower()
    log = tmp_path / "config"
    assert run_script("train.py", ["--cfg", "job", "experiment=smoke"], log=log) == 0
    assert "rounds: 2" in log.read_text()
