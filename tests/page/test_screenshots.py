"""Pictures of the page, as they are in README and docs: `make page` writes them there."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

DOCS = Path(__file__).parents[2] / "docs"
# Window, theme, and what is done before the picture is taken.
DRIVER = "document.querySelector('#tab-driver').click()"
PLAY = """
document.querySelector('#tab-play').click();
for (const [id, value] of [['who', 'ten'], ['leader', 'hand']]) {
  document.getElementById(id).value = value;
  document.getElementById(id).dispatchEvent(new Event('change'));
}
"""
PICTURES = {
    "page": ((1280, 860), False, DRIVER),
    "page_play": ((1280, 860), True, PLAY),
    "page_phone": ((390, 844), False, DRIVER),
}


@pytest.fixture(scope="module")
def pictures(browser, tmp_path_factory):
    """All pictures of the page in docs."""
    folder = tmp_path_factory.mktemp("pictures")
    for name, (size, dark, prepare) in PICTURES.items():
        browser.screen(*size, dark=dark, ratio=1.5)
        browser.open(DOCS / "page.html")
        browser.click("#example")
        browser.wait("document.body.dataset.done")
        browser.evaluate(prepare)
        if prepare is PLAY:
            browser.wait("document.querySelector('#theta-T').disabled")
            browser.click("#run")
            browser.wait("parseFloat(document.querySelector('#road-text').innerText) > 30")
            browser.click("#run")
        else:
            browser.wait("document.querySelector('#fan-text').textContent")
        browser.evaluate("new Promise((done) => requestAnimationFrame(() => done(0)))")
        browser.screenshot(folder / f"{name}.png")
    if wanted := os.environ.get("ASBC_SCREENSHOTS"):
        for name in PICTURES:
            shutil.copy(folder / f"{name}.png", Path(wanted) / f"{name}.png")
    return folder


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_shows_something_and_is_in_the_docs(name, pictures):
    drawn = imread(pictures / f"{name}.png")[..., :3]
    (width, height), dark, _ = PICTURES[name]
    assert drawn.shape[:2] == (height * 1.5, width * 1.5)
    # Mostly ground, and enough of it that is not: charts and text.
    ground = np.median(drawn.reshape(-1, 3), axis=0)
    assert (ground.mean() < 0.5) == dark
    different = np.abs(drawn - ground).max(-1) > 0.15
    assert 0.02 < different.mean() < 0.5
    assert imread(DOCS / "figures" / f"{name}.png").shape[:2] == drawn.shape[:2]
