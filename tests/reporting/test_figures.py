"""Figures show the numbers they are given, in colours everybody can tell apart."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgb

from asbc.evaluation.narrowing import Narrowing
from asbc.reporting.figures.case_study import case_study
from asbc.reporting.figures.comparison import ablation_bars, context_sweep
from asbc.reporting.figures.convergence import Rounds, convergence, read_rounds
from asbc.reporting.figures.posterior_checks import (
    contraction_boxes,
    coverage_curves,
    novelty_histogram,
    rank_ecdfs,
    recovery_scatter,
)
from asbc.reporting.figures.predictions import driving_measures, predictive_calibration
from asbc.reporting.figures.seconds_known import attention_by_age, narrowing_curves
from asbc.reporting.figures.style import COLOURS, save_figure
from asbc.reporting.figures.window_errors import error_distributions
from asbc.reporting.run_report import draw_narrowing

# Machado, Oliveira and Fernandes (2009), complete deficiency, on linear RGB.
DEFICIENCIES = {
    "none": np.eye(3),
    "protan": np.array([[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]]),
    "deutan": np.array([[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]]),
    "tritan": np.array([[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]]),
}


@pytest.mark.parametrize("deficiency", DEFICIENCIES)
def test_the_first_colours_differ_for_every_kind_of_eye(deficiency: str) -> None:
    linear = np.array([to_rgb(colour) for colour in COLOURS[:4]]) ** 2.2
    seen = np.clip(linear @ DEFICIENCIES[deficiency].T, 0, 1) ** (1 / 2.2)
    distance = np.linalg.norm(seen[:, None] - seen[None], axis=-1)
    assert distance[np.triu_indices(4, 1)].min() > 0.1


def test_boxes_sit_at_the_medians(evaluation) -> None:
    figure = error_distributions(
        {"a": evaluation.windows, "b": 2 * evaluation.windows.iloc[:, 2:]}
    )
    panel = figure.axes[0]  # ES of the gap
    medians = [line.get_ydata()[0] for line in panel.lines[4::6]]
    expected = evaluation.windows["es_s"].median()
    assert [text.get_text() for text in panel.texts] == [f"{expected:.2f}", f"{2 * expected:.2f}"]
    assert any(np.isclose(expected, line.get_ydata()).all() for line in panel.lines), medians


@pytest.mark.parametrize("length", [5, 60, 300])
def test_a_legend_stays_inside_the_figure(evaluation, length: int) -> None:
    names = [f"{i} " + ("word " * length)[:length] for i in range(6)]
    figure = error_distributions({name: evaluation.windows for name in names})
    figure.canvas.draw()
    (legend,) = figure.legends
    shown = legend.get_window_extent()
    assert shown.x0 >= 0 and shown.x1 <= figure.bbox.width
    assert [text.get_text().split() for text in legend.get_texts()] == [n.split() for n in names]
    # Four columns as long as they fit.
    assert len({round(text.get_window_extent().x0) for text in legend.get_texts()}) == (
        4 if length == 5 else 1
    )


def test_bars_are_means_with_deviations() -> None:
    def table(*values: float) -> pd.DataFrame:
        return pd.DataFrame({f"es_{x}": values for x in "sva"})

    panels = {"ASBC-Gaussian": {"full": table(1.0, 3.0), "theta_only": table(4.0)}}
    panel = ablation_bars(panels).axes[0]
    assert [bar.get_height() for bar in panel.patches] == [2.0, 4.0]
    segment = panel.collections[0].get_segments()[0]
    np.testing.assert_allclose(segment[:, 1], [2 - np.sqrt(2), 2 + np.sqrt(2)])


def test_sweep_lines_pass_through_means_of_the_three_variables() -> None:
    def table(*values: float) -> pd.DataFrame:
        return pd.DataFrame(
            {f"{score}_{x}": np.array(values) * k for score in ("rmse", "es")
             for k, x in zip((1, 2, 3), "sva", strict=True)}
        )  # fmt: skip

    figure = context_sweep({"ASBC-Gaussian": {15.0: table(1.0, 2.0), 2.0: table(4.0, 4.0)}})
    line = figure.axes[1].lines[0]
    np.testing.assert_allclose(line.get_xdata(), [2, 15])
    np.testing.assert_allclose(line.get_ydata(), [8, 3])


def test_rounds_without_a_loss_of_their_own_have_the_loss(tmp_path):
    pd.DataFrame({"round": [0, 1], "loss": [3.0, 2.0]}).to_csv(tmp_path / "rounds.csv")
    rounds = read_rounds(tmp_path / "rounds.csv", 1)
    assert rounds.rounds["trained_loss"].tolist() == [3.0, 2.0]
    assert read_rounds(tmp_path / "none.csv", 1) is None
    assert len(convergence({"a": rounds}).axes) == 1


def test_convergence_marks_the_selected_round() -> None:
    rounds = pd.DataFrame(
        {"round": [0, 1, 2], "trained_loss": [3.0, 2.0, 2.5], "validation_es": [3, 2, 1]}
    )
    figure = convergence({"run": Rounds(rounds, 1)})
    assert len(figure.axes) == 2  # no validation RMSE was recorded
    curve, mark = figure.axes[0].lines
    assert curve.get_ydata().tolist() == [3.0, 2.0, 2.5]
    assert mark.get_xdata() == [1, 1] and mark.get_linestyle() == "--"


def test_a_case_study_shows_bands_leader_and_correlations(evaluation) -> None:
    cases = evaluation.cases
    figure = case_study({"ASBC": cases}, "r/3")
    gap, speed = figure.subfigs[0].axes[:2]
    np.testing.assert_allclose(gap.lines[0].get_ydata(), cases.mean[3, 0])
    np.testing.assert_allclose(gap.lines[1].get_ydata(), cases.observed[3, 0])
    np.testing.assert_allclose(speed.lines[2].get_ydata(), cases.leader_speed[3])
    cells = [text.get_text() for ax in figure.subfigs[1].axes for text in ax.texts]
    expected = np.corrcoef(cases.theta[3][:, :5], rowvar=False)[np.triu_indices(5, 1)]
    assert cells == [f"{value:.2f}" for value in expected]


def test_calibration_curves_are_the_checks(evaluation) -> None:
    checks = evaluation.checks
    lines = coverage_curves(checks).axes[0].lines
    np.testing.assert_allclose(lines[1].get_ydata(), checks.coverage)
    ecdf = rank_ecdfs(checks).axes[0].lines[0]
    np.testing.assert_allclose(ecdf.get_ydata(), checks.ranks[0].ecdf - checks.ranks[0].points)


def test_interval_coverage_is_the_mean_over_windows(evaluation) -> None:
    panel = predictive_calibration(evaluation.windows).axes[3]
    expected = [evaluation.windows[f"coverage{level}_s"].mean() for level in (50, 80, 95)]
    np.testing.assert_allclose(panel.lines[0].get_ydata(), expected)


def test_files_are_png_and_pdf_with_ink(evaluation, tmp_path) -> None:
    from matplotlib.image import imread

    figures = {
        "driving": driving_measures(evaluation.windows, evaluation.simulated),
        "novelty": novelty_histogram(evaluation.novelty, evaluation.distance),
        "contraction": contraction_boxes(evaluation.checks),
        "recovery": recovery_scatter(evaluation.checks),
    }
    for name, figure in figures.items():
        pixels = imread(save_figure(figure, tmp_path, name))
        assert 0.005 < (pixels[..., :3].min(axis=-1) < 0.9).mean() < 0.6, name
        assert (tmp_path / f"{name}.pdf").read_bytes().startswith(b"%PDF")


def test_narrowing_and_attention_are_drawn_as_they_are(evaluation, tmp_path) -> None:
    seconds = np.array([3.0, 15.0, 60.0])
    spread = np.stack([np.linspace([0.9, 0.5], [0.3, 0.4], 3) * k for k in (0.8, 1.0, 1.1)])
    attention = np.array([2.0, 1.0, np.nan])
    found = Narrowing(
        *(("T", "sigma"), seconds, np.array([9, 8, 5]), spread),
        *(np.array([0.0, 1.0, 5.0, 10.0]), attention, 0.4),
    )
    figure = narrowing_curves(found)
    assert [ax.get_title() for ax in figure.axes[:2]] == ["$T$", r"$\sigma$"]
    for i, ax in enumerate(figure.axes[:2]):
        assert np.array_equal(ax.lines[0].get_ydata(), spread[1, :, i])
    panel = attention_by_age(found).axes[0]
    assert np.array_equal(panel.patches[0].get_data().values, [2.0, 1.0, 0.0])
    assert panel.lines[0].get_ydata()[0] == 0.4 and panel.get_xlim() == (0, 5)
    pictures = draw_narrowing(replace(evaluation, narrowing=found), tmp_path)
    assert [picture.path.name for picture in pictures] == ["narrowing.png", "attention.png"]
    assert "9 with 3 s, 8 with 15 s, 5 with 60 s" in pictures[0].caption
    assert draw_narrowing(evaluation, tmp_path) == []
