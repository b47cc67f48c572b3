"""The report of one run: complete, self-contained, and it opens in a browser."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from asbc.evaluation.results import RunInfo
from asbc.evaluation.scores import Score, energy_score
from asbc.reporting.html import Page, Section, render
from asbc.reporting.run_report import case_pairs, console_summary, write_run
from asbc.reporting.run_tables import further_table, headline_table
from asbc.reporting.text_tables import TextTable, number
from asbc.reporting.wandb import driver_table, summary_values

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
INFO = RunInfo(
    method="ASBC-Gaussian",
    kind="asbc",
    residual="gaussian",
    residual_label="Gaussian",
    trained_on="synthetic",
    evaluated_on="pairs: file.csv",
    seed=3,
)
NOTE = "Evaluated on other data than it was trained on: trained on synthetic."


@pytest.fixture(scope="module")
def report(evaluation, data_summary, tmp_path_factory, draw_nothing_in_module) -> Path:
    tmp_path = tmp_path_factory.mktemp("report")
    shown = evaluation.of(INFO, [NOTE], ["Predictions are overconfident."])
    write_run(shown, tmp_path, {"seed": 3, "a": {"b": [1]}}, data_summary)
    return tmp_path / "report.html"


def test_the_page_holds_scores_paper_rows_settings_and_warnings(report, evaluation) -> None:
    text = report.read_text()
    scores = evaluation.metrics["after_context"]
    for part in (
        f"<td>{scores['es_v']:.2f}</td>",
        "paper (highD): Pooled MA-IDM",
        "Predictions are overconfident.",
        NOTE,
        "<td>a.b</td><td>[1]</td>",
        "pairs: file.csv",
        "share of drives with a collision",
        "80 simulated drivers",
        "<td>draws outside the prior&#39;s range, redrawn</td><td>7%</td>",
        "<td>drivers unlike the training simulations</td><td>25%</td>",
    ):
        assert part in text, part
    saved = json.loads((report.parent / "metrics.json").read_text())
    assert saved["run"]["seed"] == 3 and saved["notes"] == [NOTE]


def test_a_seventh_headline_score_is_in_the_page_and_the_terminal(
    make_evaluation, data_summary, tmp_path, draw_nothing
) -> None:
    own = Score("mine", "Mine", energy_score, about="what I care about")
    share = Score("near", "near", energy_score, table="further", best=1, percent=True)
    shown = make_evaluation(extra=[own, share]).of(INFO)
    means = shown.metrics["after_context"]
    table = headline_table(shown.metrics, "ours", shown.scores)
    assert list(table.header[7:]) == ["Mine s", "Mine v", "Mine a"]
    assert table.rows[2][7] == number(means["mine_s"])
    low, high = means["interval95"]["mine_a"]
    assert table.rows[3][9] == f"[{number(low)}, {number(high)}]"
    # The paper has no such column; the others stay what it prints.
    assert table.rows[4][1:] == [
        *("2.63 ± 0.150", "0.627 ± 0.035", "0.291 ± 0.018"),
        *("15.5 ± 1.14", "3.57 ± 0.248", "1.59 ± 0.093", "–", "–", "–"),
    ]
    further = further_table(shown.metrics, shown.scores)
    assert list(further.header[-3:]) == ["near s", "v", "a"]
    assert further.rows[1][-3] == f"{means['near_s']:.0%}"
    write_run(shown, tmp_path, {}, data_summary)
    page, terminal = (tmp_path / "report.html").read_text(), console_summary(shown, tmp_path)
    for text in (page, terminal):
        assert "Mine s" in text and number(means["mine_s"]) in text
    assert "Mine: what I care about" in page
    assert {"mine_s", "rmse_a", "crps_v"} <= set(driver_table(shown))
    values = dict(summary_values(shown.metrics))
    assert values["eval/after_context/mine_s"] == means["mine_s"]


def test_the_page_needs_no_other_file_and_no_network(report) -> None:
    text = report.read_text()
    sources = re.findall(r'(?:src|href)="([^"]{0,30})', text)
    assert len(sources) == len(list((report.parent / "figures").glob("*.png"))) > 8
    assert all(source.startswith("data:image/png;base64,") for source in sources)
    assert "http" not in re.sub(r"base64,[^\"]*", "", text) and "<script" not in text


def test_names_from_data_cannot_break_the_page() -> None:
    section = Section("s", tables=[TextTable(["<b>"], [["<script>alert(1)</script>"]])])
    text = render(Page("t", {"run": "a<b"}, [], [section]))
    assert "<script>" not in text and "&lt;script&gt;" in text
    assert "No warnings." in text


def test_best_median_and_worst_are_ranked_by_the_drawn_window(evaluation) -> None:
    windows = evaluation.windows
    drawn = windows[windows["start"] == 75].set_index("pair_id")
    order = drawn[["es_s", "es_v", "es_a"]].mean(axis=1).sort_values().index.tolist()
    pairs = case_pairs(evaluation)
    assert pairs == {"best": order[0], "median": order[4], "worst": order[-1]}


def test_a_pair_is_drawn_by_its_id(evaluation) -> None:
    evaluation.metrics["settings"]["pairs"] = ["5"]
    try:
        assert case_pairs(evaluation)["pair 5"] == "r/5"
    finally:
        evaluation.metrics["settings"]["pairs"] = []


def test_the_terminal_shows_scores_and_where_the_report_is(report, evaluation) -> None:
    text = console_summary(evaluation.of(INFO), report.parent)
    assert f"{evaluation.metrics['all_windows']['rmse_s']:.2f}" in text
    assert text.endswith(f"report: {report}")


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium installed")
def test_the_page_opens_in_a_browser(report, tmp_path) -> None:
    """Chromium lays the page out: every image loads and nothing is wider than the page."""
    probe = """<script>window.onload = () => {
      const images = [...document.images];
      const ok = images.length > 8 && images.every(i => i.complete && i.naturalWidth > 0);
      const fits = document.documentElement.scrollWidth <= window.innerWidth;
      const sections = document.querySelectorAll('h2').length;
      document.title = `images:${ok} fits:${fits} sections:${sections}`;
    }</script></body>"""
    page = tmp_path / "probe.html"
    page.write_text(report.read_text().replace("</body>", probe))
    command = [
        *(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic"),
        *("--no-first-run", "--disable-background-networking", "--disable-component-update"),
        *("--disable-sync", f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1200,900"),
        *("--virtual-time-budget=5000", "--dump-dom", page.as_uri()),
    ]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120).stdout
    title = re.search(r"<title>(.*?)</title>", shown)
    assert title is not None and title.group(1) == "images:true fits:true sections:6", title
