"""One self-contained HTML page: styles inside, images as data, no network."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

import jinja2

from asbc.reporting.figures.style import DPI
from asbc.reporting.text_tables import TextTable

PIXELS_PER_INCH = 112


@dataclass(frozen=True)
class Picture:
    """An image file and what it shows."""

    path: Path
    caption: str

    @property
    def data(self) -> str:
        """The image as a data URI."""
        encoded = base64.b64encode(self.path.read_bytes()).decode("ascii")
        return f"data:image/png;base64,{encoded}"

    @property
    def width(self) -> int:
        """Width on the page in CSS pixels, the same for all text whatever the figure's size."""
        pixels = int.from_bytes(self.path.read_bytes()[16:20], "big")  # PNG's IHDR
        return round(pixels / DPI * PIXELS_PER_INCH)


@dataclass(frozen=True)
class Section:
    """A heading with text, tables and pictures below it; `folded` starts closed."""

    title: str
    text: Sequence[str] = ()
    tables: Sequence[TextTable] = ()
    pictures: Sequence[Picture] = ()
    folded: bool = False


@dataclass(frozen=True)
class Page:
    """A report: title, facts in one line each, warnings, sections."""

    title: str
    facts: dict[str, str]
    warnings: Sequence[str]
    sections: Sequence[Section]
    notes: Sequence[str] = field(default=())


def render(page: Page) -> str:
    """The page as HTML text."""
    source = resources.files("asbc.reporting").joinpath("report.html").read_text("utf-8")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(source).render(page=page)


def write_page(page: Page, path: Path) -> None:
    """Write the page to one file."""
    path.write_text(render(page), encoding="utf-8")
