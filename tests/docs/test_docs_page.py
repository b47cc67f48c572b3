"""docs/page.html is what `asbc page` would write now, but for its example."""

import json
import re
from pathlib import Path

import pytest

from asbc.page.description import describe
from asbc.page.page import SHARED, VIEW, WORKER, joined, policy, source_of
from asbc.run import Run
from asbc.shipped import DEFAULT

PAGE = Path(__file__).parents[2] / "docs" / "page.html"


def test_the_page_in_docs_is_of_the_present_sources_and_model():
    """Where this fails, run `make page`."""
    text = PAGE.read_text()
    parts = dict(re.findall(r'<script type="[\w/]+" id="data-(\w+)">(.*?)</script>', text, re.S))
    view, style = joined((*SHARED, *VIEW)), source_of("page.css")
    assert policy(view, style) in text and view in text and style in text
    assert json.loads(parts["worker"]) == joined((*SHARED, *WORKER))
    described, tensors = describe(Run.open(DEFAULT))
    written = json.loads(parts["model"])
    same = [name for name in described if name not in ("card",)]
    assert parts["tensors"] == tensors.text
    assert {name: written[name] for name in same} == {name: described[name] for name in same}


def test_it_is_small_enough_to_send():
    assert PAGE.stat().st_size < 1_100_000


@pytest.mark.parametrize("name", [*SHARED, *WORKER, *VIEW])
def test_every_script_is_short_and_says_what_it_is(name):
    text = source_of(f"js/{name}.js")
    assert text.startswith("// ") and len(text.splitlines()) <= 300
