"""What a study runs, from plain values and from its config."""

import re
from functools import cache

import pytest
from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf

from asbc.arguments import register_resolvers
from asbc.config import CONF, compose
from asbc.errors import InputError
from asbc.reporting.design_study import budget, way
from asbc.run import key_of
from asbc.study import Step, Study
from asbc.training.train import build_strategy

STUDIES = sorted(path.stem for path in (CONF / "study").glob("*.yaml"))


def make_study(**settings) -> Study:
    return Study(**{"name": "test", "output": "out", **settings})


def configured(name: str) -> Study:
    settings = OmegaConf.to_container(compose("study", [f"study={name}"]), resolve=True)
    settings.pop("engine")  # who runs it
    return Study(**settings)


def test_seeds_times_variants_then_each_baseline_once():
    runs = make_study(
        variants={"a": ["residual=gaussian"], "b": ["residual=matern"]},
        baselines={"c": ["baseline=b_idm"]},
        seeds=[3, 4],
        shared={
            "train": ["experiment=x"],
            "evaluate": ["evaluation=fast"],
            "baseline": ["nuts=y"],
        },
        overrides=["data=pairs"],
    ).runs()
    folders = [str(run.folder) for run in runs]
    assert folders == ["out/a/seed3", "out/b/seed3", "out/a/seed4", "out/b/seed4", "out/c/seed3"]
    train, evaluate = runs[1].steps
    assert train.command == "train" and evaluate.command == "evaluate"
    assert train.arguments == (
        *("experiment=x", "data=pairs", "residual=matern", "seed=3"),
        *("hydra.run.dir='out/b/seed3'", "ckpt_path=last"),
    )
    assert evaluate.arguments == ("run='out/b/seed3'", "evaluation=fast")
    [baseline] = runs[-1].steps
    assert baseline.command == "baseline"
    assert baseline.arguments == (
        *("nuts=y", "data=pairs", "evaluation=fast", "baseline=b_idm", "seed=3"),
        "hydra.run.dir='out/c/seed3'",
    )


def test_some_variants_run_once():
    runs = make_study(variants={"a": [], "dear": []}, once=["dear"], seeds=[5, 6]).runs()
    assert [str(run.folder) for run in runs] == ["out/a/seed5", "out/dear/seed5", "out/a/seed6"]
    with pytest.raises(InputError, match="once=x: no such variant; have a"):
        make_study(variants={"a": []}, once=["x"])


def test_some_baselines_run_with_every_seed():
    settings = {"baselines": {"a": [], "net": ["baseline=gru"]}, "seeds": [5, 6]}
    runs = make_study(**settings, repeated=["net"]).runs()
    assert [str(run.folder) for run in runs] == ["out/a/seed5", "out/net/seed5", "out/net/seed6"]
    assert "seed=6" in runs[-1].steps[0].arguments
    with pytest.raises(InputError, match="repeated=x: no such baseline; have a, net"):
        make_study(**settings, repeated=["x"])


def test_a_run_may_be_evaluated_in_several_ways():
    [run] = make_study(
        variants={"a": []},
        shared={"evaluate": ["evaluation=fast"]},
        evaluations={"first": [], "other": ["data.path=b.csv"]},
    ).runs()
    train, first, other = run.steps
    assert [step.title for step in run.steps] == ["train", "evaluate_first", "evaluate_other"]
    assert first.arguments == (
        *("run='out/a/seed0'", "evaluation=fast", "output='out/a/seed0/first/evaluation'"),
    )
    assert other.arguments[2:] == ("data.path=b.csv", "output='out/a/seed0/other/evaluation'")
    with pytest.raises(InputError, match="evaluations.x=latest: expected a list"):
        make_study(variants={"a": []}, evaluations={"x": "latest"})


def test_only_some():
    settings = {"variants": {"a": [], "b": []}, "baselines": {"c": [], "d": []}}
    runs = make_study(**settings, only=["b", "c"]).runs()
    assert [str(run.folder) for run in runs] == ["out/b/seed0", "out/c/seed0"]
    with pytest.raises(InputError, match="only=x: no such variant.*have a, b, c, d"):
        make_study(**settings, only=["b", "x"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"variants": {"c": []}}, "c: the name of"),
        ({"variants": {"a": []}, "seeds": []}, "at least one seed"),
        ({"seeds": 3}, r"seeds=3: expected a list; write seeds=\[3\]"),
        ({"only": "c"}, r"only=c: expected a list; write only=\[c\]"),
        ({"shared": {"train": "a=1"}}, r"shared.train=a=1: expected a list"),
        ({"shared": {"trian": []}}, "shared.trian: no such command; expected train, evaluate"),
    ],
)
def test_plans_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        make_study(baselines={"c": []}, **settings)


def test_a_study_may_only_train():
    study = make_study(variants={"a": []}, shared={"evaluate": None})
    runs = study.runs()
    assert [step.command for step in runs[0].steps] == ["train"]
    assert study.report_over(runs) is None


def test_the_report_is_over_all_runs():
    study = make_study(variants={"a": []}, baselines={"b": []}, shared={"report": ["design=true"]})
    step = study.report_over(study.runs())
    assert step.command == "report"
    assert step.arguments == (
        *("runs=['out/a/seed0','out/b/seed0']", "output='out/report'", "design=true"),
    )


@cache
def composed(name: str) -> list[tuple[Step, DictConfig]]:
    """The first step of every variant and baseline of a study, then the steps they share."""
    register_resolvers()
    data = OmegaConf.to_container(compose("train").data)
    ConfigStore.instance().store(group="data", name="run", node=data)
    study = configured(name)
    runs = study.runs()
    first = [run.steps[0] for run in runs if run.folder.name == f"seed{study.seeds[0]}"]
    assert len(first) == len(study.variants) + len(study.baselines)
    result = []
    report = study.report_over(runs)
    for step in [*first, *runs[0].steps[1:], *([report] if report else [])]:
        given = [re.sub("^hydra.run.dir=", "folder=", text) for text in step.arguments]
        if step.command != "train":
            given = [text for text in given if not text.startswith("folder=")]
        result.append((step, compose(step.command, given)))
    return result


@pytest.mark.parametrize("name", STUDIES)
def test_every_command_of_a_study_composes(name):
    """And the loop of every variant is one that can work."""
    assert configured(name).name == name
    for step, made in composed(name):
        assert step.command in ("evaluate", "report") or made.seed == 0
        if step.command == "train":
            assert made.ckpt_path == "last"
            build_strategy(OmegaConf.to_container(made, resolve=True))


def test_the_design_study_spends_what_its_names_say():
    """Each budget in the same number of gradient steps, whatever the way."""
    sizes = {"1k": 1200, "5k": 4800, "24k": 24_000}
    steps = {"1k": 400, "5k": 1200, "24k": 3000}
    trained = [made for step, made in composed("design") if step.command == "train"]
    for made in trained:
        name = made.folder.split("/")[-2]
        fewer = name.endswith("_two_thirds")
        kind, _, size = name.removesuffix("_two_thirds").rpartition("_")
        config = OmegaConf.to_container(made, resolve=True)
        assert way(config).replace(", ", "_").replace(" ", "_") == kind
        assert budget(config) == sizes[size] * 2 // 3 if fewer else sizes[size]
        taken = config["training"]["steps"]
        assert (taken if isinstance(taken, int) else sum(taken)) == steps[size]
    assert len(trained) == len(configured("design").variants) == 3 * 10 + 2 * 2


def test_small_and_paper_differ_by_their_size_only():
    small, paper = configured("small"), configured("paper")
    assert (small.variants, small.baselines) == (paper.variants, paper.baselines)
    assert set(map(key_of, small.shared["train"])) - set(map(key_of, paper.shared["train"])) == {
        "experiment"
    }
