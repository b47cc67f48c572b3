"""Commands in the documentation compose, links lead somewhere, the reference is current."""

import re
import runpy
import shlex
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser

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
    if script.startswith("scripts/") or any(text.startswith("-") for text in given):
        return  # not an override: argparse or Hydra's own flags
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        compose(script.removesuffix(".py"), one_job(given), return_hydra_config=True)


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
