"""`asbc page`: what it writes, for whom, and what it refuses."""

import pytest

from asbc.run import Run


def test_the_command_writes_one_file_and_nothing_else(run_command, tmp_path, tiny_pairs):
    log = tmp_path / "log"
    given = ["data=pairs", f"data.path={tiny_pairs}", "example.pairs=3", "output=made/page.html"]
    assert run_command("page", [*given, "data.min_duration=0"], log=log) == 2
    assert "no usable pair" in log.read_text()  # shorter than the model's context
    given = ["data=synthetic", "output=made/page.html", "data.recordings=1", "data.platoon=8"]
    assert run_command("page", [*given, "data.duration=90"], log=log) == 0, log.read_text()
    assert "idm_matern: made/page.html" in log.read_text()
    assert [path.name for path in (tmp_path / "made").iterdir()] == ["page.html"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["output=page.txt"], "output=page.txt: expected a file that ends with .html"),
        (["run=nobody"], "run=nobody: no such folder"),
        (["example.pairs=0"], "example.pairs=0"),
    ],
)
def test_a_mistake_is_one_line(given, words, run_command, tmp_path):
    log = tmp_path / "log"
    assert run_command("page", given, log=log) == 2
    assert words in log.read_text() and "Traceback" not in log.read_text()


@pytest.mark.parametrize("overrides", [("flow=maf", "transform=softplus"), ("history=segments",)])
def test_a_run_of_ones_own_has_a_page_that_calibrates(
    overrides, browser, trained, tiny_pairs, tmp_path
):
    """Trained on pairs of 12 s with a context of 4 s, which the page then reads."""
    from asbc.data.pairs_file import read_pairs
    from asbc.page.page import write_page

    run = Run.open(trained(*overrides))
    page = tmp_path / "own.html"
    write_page(run, page, read_pairs(tiny_pairs))
    browser.screen(1280, 900)
    browser.open(page)
    browser.choose_file("#file", tiny_pairs)
    browser.wait("document.body.dataset.done")
    assert "24 drivers calibrated" in browser.text("#outcome")
    browser.wait("document.querySelector('#fan-text').textContent")
    assert browser.problems == []
