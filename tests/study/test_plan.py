"""What a study runs, from plain values and from its config."""

from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

from asbc.errors import InputError
from asbc.study import Overrides, plan_study

CONF = Path(__file__).parents[2] / "conf"
PLACES = ("run=", "hydra.run.dir=")


def test_seeds_times_variants_then_each_baseline_once():
    runs = plan_study(
        Path("out"),
        {"a": ["residual=gaussian"], "b": ["residual=matern"]},
        {"c": ["baseline=b_idm"]},
        [3, 4],
        Overrides(train=["experiment=x"], evaluate=["evaluation=fast"], baseline=["nuts=y"]),
    )
    folders = [str(run.folder) for run in runs]
    assert folders == ["out/a/seed3", "out/b/seed3", "out/a/seed4", "out/b/seed4", "out/c/seed3"]
    train, evaluate = runs[1].steps
    assert train.script == "train.py" and evaluate.script == "evaluate.py"
    assert train.arguments == (
        *("experiment=x", "residual=matern", "seed=3"),
        *("hydra.run.dir='out/b/seed3'", "ckpt_path=last"),
    )
    assert evaluate.arguments == ("run='out/b/seed3'", "evaluation=fast")
    [baseline] = runs[-1].steps
    assert baseline.arguments[:3] == ("nuts=y", "evaluation=fast", "baseline=b_idm")


def test_only_some():
    arguments = (Path("o"), {"a": [], "b": []}, {"c": [], "d": []}, [0], Overrides())
    runs = plan_study(*arguments, only=["b", "c"])
    assert [str(run.folder) for run in runs] == ["o/b/seed0", "o/c/seed0"]
    with pytest.raises(InputError, match="only=x: no such variant.*have a, b, c, d"):
        plan_study(*arguments, only=["b", "x"])


@pytest.mark.parametrize(
    ("variants", "seeds", "message"),
    [({"c": []}, [0], "c: the name of"), ({"a": []}, [], "at least one seed")],
)
def test_plans_that_make_no_sense_are_refused(variants, seeds, message):
    with pytest.raises(InputError, match=message):
        plan_study(Path("out"), variants, {"c": []}, seeds, Overrides())


SCALES = {
    "study": ["small", "paper"],
    "comparison": ["comparison"],
    "design": ["design_small", "design_large"],
}


def test_a_study_may_only_train():
    run = plan_study(Path("o"), {"a": []}, {}, [0], Overrides(evaluate=None))[0]
    assert [step.name for step in run.steps] == ["train"]


def test_every_scale_belongs_to_a_study():
    files = {path.stem for path in (CONF / "scale").glob("*.yaml")}
    assert files == {scale for scales in SCALES.values() for scale in scales}


def test_every_command_of_the_studies_composes():
    with initialize_config_dir(str(CONF), version_base="1.3"):
        commands = {}
        for root, scale in [(r, s) for r, scales in SCALES.items() for s in scales]:
            cfg = compose(root, [f"scale={scale}"])
            shared = Overrides(cfg.scale.train, cfg.scale.evaluate, cfg.scale.baseline)
            # All variants at one scale, one of them at the others: composing takes its time.
            only = ["matern", "b_idm"] if scale in ("paper", "comparison") else cfg.only
            runs = plan_study(Path("o"), cfg.variants, cfg.baselines, [0], shared, only)
            for step in (step for run in runs for step in run.steps):
                given = [text for text in step.arguments if not text.startswith(PLACES)]
                commands[(step.script, *given)] = None
        for script, *given in commands:
            made = compose(script.removesuffix(".py"), given)
            assert script != "train.py" or (made.seed, made.ckpt_path) == (0, "last")
