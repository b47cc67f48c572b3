"""Reports over many runs: numbers of the table, panels, and the refusal to mix."""

import logging

import numpy as np
import pandas as pd
import pytest

from asbc.commands.report import main
from asbc.config import compose
from asbc.errors import InputError
from asbc.evaluation.scores import headline
from asbc.reporting.collect import find_runs, group_comparable, require_comparable, with_suffixes
from asbc.reporting.figures import style
from asbc.reporting.study_report import write_studies
from asbc.reporting.study_tables import (
    ablation_panels,
    ablation_table,
    main_methods,
    over_seeds,
    score_table,
    sweep_panels,
    table_one,
)


def runs_below(path) -> list:
    return with_suffixes(find_runs(str(path / "runs")))


def test_table_one_is_the_mean_and_sample_deviation_over_seeds(save_run, tmp_path) -> None:
    for seed in range(3):
        save_run(f"g{seed}", seed=seed)
    save_run("b", acquisition=None, method="Pooled B-IDM", scale=0.1)
    runs = runs_below(tmp_path)
    summary = over_seeds(score_table(runs, "all_windows")).set_index("label")
    ours = [r.metrics["all_windows"] for r in runs if r.info["kind"] == "asbc"]
    for name in headline():
        values = [metrics[name] for metrics in ours]
        assert summary.loc["ASBC-Gaussian", f"{name}_mean"] == pytest.approx(np.mean(values))
        assert summary.loc["ASBC-Gaussian", f"{name}_sd"] == pytest.approx(np.std(values, ddof=1))
    assert summary.loc["ASBC-Gaussian", "seeds"] == 3
    markdown = table_one(summary.reset_index()).to_markdown().splitlines()
    mean = np.mean([m["rmse_s"] for m in ours])
    sd = np.std([m["rmse_s"] for m in ours], ddof=1)
    assert markdown[2].startswith(f"| ASBC-Gaussian | {mean:.3f} ± {sd:.3f} |")
    # The baseline is best in every column and says so, even against our method.
    assert markdown[3].count("**") == 12 and "Pooled B-IDM" in markdown[3]
    assert markdown[5] == (
        "| paper (highD): ASBC-Matérn | 2.455 ± 0.209 | 0.628 ± 0.077 | 0.302 ± 0.031 "
        "| 13.452 ± 0.489 | 3.367 ± 0.278 | 1.511 ± 0.179 | 5 | – |"
    )


def test_reduction_is_the_papers_formula(save_run, tmp_path) -> None:
    save_run("full", scale=3.0)
    save_run("theta", acquisition="theta_only", scale=4.0)
    save_run("prior", acquisition="prior_only", scale=3.0)
    panels = ablation_panels(runs_below(tmp_path))
    assert list(panels) == ["ASBC-Gaussian"]
    assert list(panels["ASBC-Gaussian"]) == ["full", "prior_only", "theta_only"]
    rows = ablation_table(panels).rows
    assert rows[0] == ["ASBC-Gaussian: prior_only", "+0.0%", "+0.0%", "+0.0%"]
    # Scores scaled by 3 and 4: (4 - 3) / 4 = 25 percent.
    assert rows[1] == ["ASBC-Gaussian: theta_only", "+25.0%", "+25.0%", "+25.0%"]


def test_sweep_panels_are_by_seconds(save_run, tmp_path) -> None:
    save_run("t75")
    save_run("t10", context_steps=10, variant=("data.context_steps=10",))
    save_run("t10b", context_steps=10, variant=("data.context_steps=10",), seed=1)
    panels = sweep_panels(runs_below(tmp_path))
    lengths = panels["ASBC-Gaussian"]
    assert list(lengths) == [2.0, 15.0]
    assert [len(table) for table in lengths.values()] == [2, 1]


def test_other_settings_are_another_row(save_run, tmp_path) -> None:
    study = "experiment=small"
    save_run("a", variant=(study,))
    save_run("b", variant=(study, "flow=nsf"))
    labels = {run.folder.parent.name: run.label for run in runs_below(tmp_path)}
    assert labels == {"a": "ASBC-Gaussian", "b": "ASBC-Gaussian, flow=nsf"}
    assert list(main_methods(runs_below(tmp_path))) == ["ASBC-Gaussian"]


def test_contexts_and_observations_are_rows_of_their_own(save_run, tmp_path) -> None:
    save_run("first")
    save_run("latest", changes={"settings": {"context": "latest"}})
    both = {"context": "latest", "observation": "recorded"}
    save_run("both", changes={"settings": both})
    save_run("theta_only", acquisition="theta_only")
    runs = runs_below(tmp_path)
    require_comparable(runs)  # the same windows of the same pairs
    labels = {run.folder.parent.name: run.label for run in runs}
    assert labels == {
        "first": "ASBC-Gaussian",
        "latest": "ASBC-Gaussian, latest 15 s",
        "both": "ASBC-Gaussian, latest 15 s, as recorded",
        "theta_only": "ASBC-Gaussian, theta_only",
    }
    # They are no further seeds of the method in figures and ablations.
    assert list(main_methods(runs)) == ["ASBC-Gaussian"]
    assert [len(table) for table in ablation_panels(runs)["ASBC-Gaussian"].values()] == [1, 1]


def test_a_context_that_all_rows_share_is_still_said(save_run, tmp_path) -> None:
    for seed in range(2):
        save_run(f"seed{seed}", seed=seed, changes={"settings": {"context": "latest"}})
    runs = runs_below(tmp_path)
    assert {run.label for run in runs} == {"ASBC-Gaussian, latest 15 s"}
    assert not any(run.suffix for run in runs)


def test_runs_of_other_data_or_protocol_are_refused_by_name(
    save_run, tmp_path, draw_nothing
) -> None:
    for seed in range(2):
        save_run(f"same{seed}", seed=seed)
    save_run("data", seed=2, changes={"data": {"fingerprint": "bad", "n_pairs": 3}})
    save_run("fewer", seed=3, changes={"settings": {"samples": 100}})
    runs = find_runs(str(tmp_path / "runs" / "*"))
    with pytest.raises(InputError) as error:
        require_comparable(runs)
    text = str(error.value)
    assert "2 agree" in text and "same0" not in text
    assert "data/evaluation: data pairs: file.csv (3 pairs) instead of" in text
    assert "fewer/evaluation: evaluation.samples=100 instead of 500" in text
    with pytest.raises(InputError, match="not evaluated alike"):
        write_studies(runs, tmp_path / "out")
    assert [len(group) for group in group_comparable(runs)] == [2, 1, 1]
    write_studies(runs, tmp_path / "out", mixed="separate")
    tables = sorted(p.parent.name for p in (tmp_path / "out").glob("*/table1.md"))
    assert tables == ["group_1", "group_2", "group_3"]


def test_the_same_method_and_seed_twice_is_refused(save_run, tmp_path) -> None:
    save_run("first")
    save_run("second")
    with pytest.raises(InputError, match="same method and seed"):
        runs_below(tmp_path)


def test_finding_runs_by_glob_list_and_parent(save_run, tmp_path, caplog) -> None:
    first, second = save_run("x1"), save_run("x2", seed=1)
    (tmp_path / "runs" / "x3").mkdir()
    (tmp_path / "runs" / "x3" / "run.json").write_text("{}")
    with caplog.at_level(logging.WARNING):
        found = find_runs(str(tmp_path / "runs" / "x*"))
    assert [run.folder.parent for run in found] == [first, second]
    assert "x3 is not evaluated" in caplog.text
    assert len(find_runs([str(first), str(second), str(first)])) == 2
    old = tmp_path / "old" / "evaluation"
    old.mkdir(parents=True)
    (old / "metrics.json").write_text('{"run": {"method": "ASBC"}}')
    with pytest.raises(InputError, match="written by another version"):
        find_runs(str(tmp_path / "old"))
    with pytest.raises(InputError, match="nothing matches"):
        find_runs(str(tmp_path / "none*"))
    with pytest.raises(InputError, match="no evaluation found"):
        find_runs(str(tmp_path / "runs" / "x3"))


def test_a_study_writes_every_table_and_figure(save_run, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("asbc.reporting.figures.case_study.SHOWN", ("v0", "T"))  # fewer panels
    monkeypatch.setitem(style.SETTINGS, "pdf.fonttype", 3)  # faster
    save_run("g0")
    save_run("g1", seed=1)
    save_run("gt", acquisition="theta_only")
    save_run("m0", residual="matern")
    save_run("short", context_steps=25, variant=("data.context_steps=25",))
    save_run("b", acquisition=None, method="Pooled B-IDM")
    lines = write_studies(find_runs(str(tmp_path / "runs")), tmp_path / "out")
    out = tmp_path / "out"
    names = ["error_distributions", "case_study", "convergence", "ablation", "context_sweep"]
    for number, name in enumerate(names, start=3):
        for ending in ("png", "pdf"):
            assert (out / "figures" / f"fig{number}_{name}.{ending}").stat().st_size > 3000
    for name in ("table1", "table1_after_context"):
        csv = pd.read_csv(out / f"{name}.csv")
        assert len(csv) == 5 and {"rmse_s_mean", "es_a_sd"} <= set(csv)
        latex = (out / f"{name}.tex").read_text()
        assert latex.count(r"\\") == 1 + 5 + 4 and r"ASBC-Mat\'ern" in latex
    assert "Fig. 6" not in "".join(lines) and lines[-1].endswith("report.html")
    assert "Pooled B-IDM" in (out / "report.html").read_text()


def test_missing_figures_say_what_they_need(save_run, tmp_path, draw_nothing) -> None:
    save_run("b", acquisition=None, method="Pooled B-IDM")
    save_run("m", acquisition=None, method="Pooled MA-IDM", changes={"notes": ["Take care."]})
    lines = write_studies(find_runs(str(tmp_path / "runs")), tmp_path / "out")
    page = (tmp_path / "out" / "report.html").read_text()
    assert "1 of 2 runs come with warnings" in page
    assert "Pooled MA-IDM: Take care." in page
    text = " ".join(lines)
    assert "Fig. 6 (ablations) needs" in text and "Fig. 7 (T_E sweep) needs" in text


def test_a_page_takes_the_tables_of_several_reports(save_run, tmp_path, draw_nothing) -> None:
    save_run("b", acquisition=None, method="Pooled B-IDM")
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- after_context -->\n<!-- end -->\n<!-- other_after_context -->\n<!-- end -->"
    )
    runs = find_runs(str(tmp_path / "runs"))
    write_studies(runs, tmp_path / "out", pages=[page], prefix="other_")
    before, after = page.read_text().split("<!-- other_after_context -->")
    assert "Pooled B-IDM" in after and "Pooled B-IDM" not in before


def test_the_command_prints_table_one(save_run, tmp_path, draw_nothing, capsys) -> None:
    runs = [save_run("g0"), save_run("b", acquisition=None, method="Pooled B-IDM")]
    shown = ",".join(map(str, runs))
    main(compose("report", [f"runs=[{shown}]", f"output={tmp_path / 'out'}"]))
    text = capsys.readouterr().out
    assert "| ASBC-Gaussian |" in text and "| Pooled B-IDM |" in text
    assert text.rstrip().endswith("out/report.html")
