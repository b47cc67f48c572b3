"""The page: template, styles and scripts joined into one file that loads nothing.

The browser is told so by a Content-Security-Policy: only scripts and styles with the hashes of
what is in the file run, workers come from the page itself, and nothing may be fetched.
"""

import base64
import hashlib
import html
import json
import re
from collections.abc import Sequence
from importlib import resources
from importlib.metadata import version
from pathlib import Path

from asbc.data.pairs import Pairs
from asbc.page.description import describe
from asbc.run import Run
from asbc.utils.files import write_text

# Scripts by the order in which they are joined. What both sides need comes first.
SHARED = ("numbers", "random", "transform", "residual", "simulator", "columns", "flags")
WORKER = (
    *("weights", "encoder", "segment_pool", "spline", "flow", "posterior", "csv", "motion"),
    *("plausibility", "checks", "resampling", "history", "exports", "worker"),
)
VIEW = (
    *("dom", "messages", "canvas", "density_chart", "corner_chart", "trajectory_chart"),
    *("columns_dialog", "driver_view", "population_view", "road", "play_view", "app"),
)
DIGITS = 3  # of the example's numbers: millimetres


def write_page(run: Run, output: Path, example: Pairs, count: int = 8) -> int:
    """Write the page of a run's model; returns its size in bytes.

    Args:
        run: whose model.
        output: the file.
        example: pairs that the page offers as its built-in example.
        count: how many of them to take.
    """
    text = render(run, example_csv(example, count))
    write_text(output, text)
    return len(text.encode())


def render(run: Run, example: str) -> str:
    """The page as HTML text.

    Args:
        run: whose model.
        example: a pairs table as CSV.
    """
    described, tensors = describe(run)
    described |= {"tensors": tensors.listed, "version": version("asbc")}
    worker = joined((*SHARED, *WORKER))
    view = joined((*SHARED, *VIEW))
    style = source_of("page.css")
    parts = {
        "TITLE": html.escape(described["card"]["title"]),
        "POLICY": policy(view, style),
        "STYLE": style,
        "MODEL": _data(json.dumps(described, ensure_ascii=False)),
        "TENSORS": tensors.text,
        "EXAMPLE": _data(json.dumps(example)),
        "WORKER": _data(json.dumps(worker)),
        "SCRIPT": view,
    }
    template = source_of("page.html")
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], template)


def policy(script: str, style: str) -> str:
    """The Content-Security-Policy: this script, these styles, workers of ours, nothing else."""
    return "; ".join(
        [
            "default-src 'none'",
            f"script-src '{_hash(script)}'",
            f"style-src '{_hash(style)}'",
            "worker-src blob:",
            "connect-src 'none'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )


def joined(names: Sequence[str]) -> str:
    """Scripts one after the other, in a scope of their own."""
    bodies = [f"// ---- {name}.js\n{source_of(f'js/{name}.js')}" for name in names]
    return "\n".join(['"use strict";', "(() => {", *bodies, "})();", ""])


def example_csv(pairs: Pairs, count: int) -> str:
    """Some pairs, evenly spread over their mean speed, as a table that the page reads."""
    speeds = [float(pairs.pair(i)["speed"].mean()) for i in range(len(pairs))]
    order = sorted(range(len(pairs)), key=lambda i: speeds[i])
    count = min(count, len(order))
    chosen = sorted(order[round(k * (len(order) - 1) / max(count - 1, 1))] for k in range(count))
    table = pairs.select(chosen).to_table().drop(columns="acceleration")
    return table.round(DIGITS).to_csv(index=False)


def source_of(name: str) -> str:
    """A file of this package."""
    return resources.files("asbc.page").joinpath(name).read_text("utf-8")


def _data(text: str) -> str:
    """JSON that no HTML parser takes for the end of its element."""
    return text.replace("<", "\\u003c")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return "sha256-" + base64.b64encode(digest).decode("ascii")
