"""The whole config as a tree, for the eyes of who started the run."""

import json
import sys
from collections.abc import Mapping
from typing import Any

import yaml
from rich.console import Console
from rich.syntax import Syntax
from rich.tree import Tree


def config_tree(config: Mapping[str, Any]) -> Tree:
    """A branch for each section, with its values below."""
    tree = Tree("config")
    for name, value in config.items():
        if isinstance(value, Mapping) and value:
            text = yaml.safe_dump(dict(value), sort_keys=False, allow_unicode=True).rstrip()
            tree.add(name).add(Syntax(text, "yaml", background_color="default"))
        else:
            tree.add(f"{name}: {json.dumps(value)}")
    return tree


def show_config(config: Mapping[str, Any]) -> None:
    """Print the tree, unless nobody is watching: jobs and pipes have config.yaml."""
    if sys.stdout.isatty():
        Console().print(config_tree(config))
