"""Write docs/configuration.md from conf/: `python scripts/config_reference.py`."""

from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
CONF = ROOT / "conf"
PAGE = ROOT / "docs" / "configuration.md"

HEAD = """# Configuration reference

Written by `python scripts/config_reference.py` from the files in `conf/`; do not edit.

`GROUP=OPTION` chooses a file of a group, `KEY=VALUE` changes a value of any file, and `-m` with
comma-separated values sweeps. `python train.py --cfg job` shows the result without running it;
`python train.py --help` lists the choices. Unknown names are refused.
"""


def reference() -> str:
    """The whole page."""
    roots = sorted(CONF.glob("*.yaml"))
    groups = sorted({path.parent for path in CONF.rglob("*.yaml")} - {CONF})
    parts = [HEAD, "## Commands\n"]
    for path in roots:
        parts.append(f"### `{path.stem}.py`\n\n{_block(path)}")
    parts.append("## Groups\n")
    for folder in groups:
        name = folder.relative_to(CONF).as_posix()
        parts.append(
            f"### `{name}`\n\nUsed by {', '.join(_users(name, roots)) or 'other files'}.\n"
        )
        for path in sorted(folder.glob("*.yaml")):
            parts.append(f"#### `{name}={path.stem}`\n\n{_block(path)}")
    return "\n".join(parts)


def _block(path: Path) -> str:
    return f"```yaml\n{path.read_text().strip()}\n```\n"


def _users(group: str, roots: list[Path]) -> list[str]:
    """Entry points whose defaults name the group."""
    users = []
    for path in roots:
        defaults = yaml.safe_load(path.read_text()).get("defaults", [])
        names = [next(iter(entry)) for entry in defaults if isinstance(entry, dict)]
        if group in {name.split()[-1].strip("/") for name in names}:
            users.append(f"`{path.stem}.py`")
    return users


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(reference())
    print(f"written: {PAGE.relative_to(ROOT)}")
