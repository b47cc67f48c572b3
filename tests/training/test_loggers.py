import io

from rich.console import Console

from asbc.training.loggers import config_tree, show_config

CONFIG = {"seed": 3, "tags": ["a"], "ckpt_path": None, "training": {"rounds": 2, "x": {"y": 1}}}


def test_every_value_is_in_the_tree():
    console = Console(width=60, record=True, file=io.StringIO())
    console.print(config_tree(CONFIG))
    lines = [line.strip("│├└─ ") for line in console.export_text().splitlines()]
    expected = ["config", "seed: 3", "tags:", "ckpt_path: null", "training", "rounds: 2", "x:"]
    assert [text for text in expected if not any(x.startswith(text) for x in lines)] == []
    assert "y: 1" in lines


def test_nothing_is_printed_without_a_terminal(capsys):
    show_config(CONFIG)
    assert capsys.readouterr().out == ""
