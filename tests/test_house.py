"""The rules of the house: who may import whom, light doors, one name for one thing."""

import ast
import inspect
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import asbc
from asbc.commands import COMMANDS

SRC = Path(asbc.__file__).parent
# Data flow from left to right: a package imports from its left only.
ORDER = (
    *("errors", "types", "utils", "config", "engine", "data", "simulator", "design", "posterior"),
    *("trained_model", "run", "shipped", "model_cards", "arguments", "training", "evaluation"),
    *("predictive", "exact", "baselines", "reporting", "calibration", "surprise", "live"),
    *("population", "study", "model_library", "page", "commands"),
)
# The front door: a run offers what lies to its right, imported when it is called.
DOORS = {("run", other) for other in ("calibration", "evaluation", "live", "shipped")}
FILES = sorted(SRC.rglob("*.py"))


def package_of(file: Path) -> str:
    return file.relative_to(SRC).parts[0].removesuffix(".py")


def imported(file: Path) -> set[str]:
    """Packages and modules of ours that a file imports anywhere, types alone left out."""
    found = set()
    tree = ast.parse(file.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("asbc."):
            found.add(node.module.split(".")[1])
        elif isinstance(node, ast.ImportFrom) and node.module == "asbc":
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            names = (alias.name.split(".") for alias in node.names)
            found |= {parts[1] for parts in names if parts[0] == "asbc" and len(parts) > 1}
    return found


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(SRC)))
def test_a_package_imports_only_from_its_left(file):
    own = package_of(file)
    if own in ("__init__", "__main__"):
        return
    for other in imported(file) - {own}:
        left = ORDER.index(other) < ORDER.index(own)
        assert left or (own, other) in DOORS, f"{file.name} imports asbc.{other}"


def test_every_package_has_its_place_in_the_order():
    found = {package_of(file) for file in FILES} - {"__init__", "__main__"}
    assert found == set(ORDER)


def test_no_two_files_of_different_purpose_share_a_name():
    """A command is named after what it starts, and so are the module and the command."""
    names = [
        file.stem
        for file in FILES
        if file.stem not in ("__init__", "__main__") and package_of(file) != "commands"
    ]
    assert not [name for name, count in Counter(names).items() if count > 1]


def test_modules_say_what_they_are():
    assert not [str(f) for f in FILES if not ast.get_docstring(ast.parse(f.read_text()))]


LIGHT = """
import sys
{code}
heavy = {{"torch", "pytorch_lightning", "jax", "matplotlib", "wandb"}} & set(sys.modules)
assert not heavy, heavy
"""


def python(code: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


def test_importing_asbc_imports_nothing_heavy():
    done = python(LIGHT.format(code="import asbc; asbc.Run, asbc.InputError, asbc.__version__"))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_help_imports_nothing_heavy(command):
    code = f"""
from asbc.commands import main
try:
    main(["{command}", "--help"])
except SystemExit as end:
    assert not end.code, end.code
"""
    done = python(LIGHT.format(code=code))
    assert done.returncode == 0, done.stderr
    assert "Configuration groups" in done.stdout or "Config" in done.stdout


def test_a_command_is_named_once_and_unknown_ones_are_refused():
    files = {file.stem for file in (SRC / "commands").glob("*.py")} - {"__init__"}
    assert files == set(COMMANDS)
    done = subprocess.run([sys.executable, "-m", "asbc", "trian"], capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("error: trian: no such command")
    done = subprocess.run([sys.executable, "-m", "asbc"], capture_output=True, text=True)
    assert done.returncode == 0 and all(name in done.stdout for name in COMMANDS)


def test_a_reader_who_leaves_early_sees_no_traceback():
    command = [sys.executable, "-m", "asbc", "models"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1


@pytest.mark.parametrize("name", [n for n in asbc.__all__ if n != "__version__"])
def test_public_names_are_documented_and_typed(name):
    public = getattr(asbc, name)
    assert ">>>" in inspect.getdoc(public) and "+SKIP" not in inspect.getdoc(public)
    if inspect.isfunction(public):
        hints = inspect.get_annotations(public)
        assert set(inspect.signature(public).parameters) | {"return"} == set(hints)


def test_the_package_offers_its_public_names():
    assert set(asbc.__all__) <= set(dir(asbc))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        asbc.nothing  # noqa: B018
