"""Shipped models: what is in the package opens, is what it says, and is refused when changed."""

import json
import shutil
from dataclasses import replace
from importlib.metadata import version

import pytest
import torch

import asbc
from asbc import shipped
from asbc.config import CONF, compose
from asbc.data.synthetic.platoons import Roads
from asbc.errors import InputError
from asbc.model_cards import card_text, overview
from asbc.model_library import Recipe, make_models
from asbc.run import Run
from asbc.shipped import DEFAULT, MOST_BYTES, ShippedRun, names
from asbc.utils.tensor_file import read_tensors, write_tensor_file


@pytest.fixture(scope="module")
def drivers():
    source = Roads(platoons={"stop_and_go": 2, "free": 1}, followers=3, duration=40.0, seed=9)
    return source.pairs()


def test_every_recipe_has_its_file_and_every_file_its_recipe():
    recipes = compose("models").recipes
    assert set(names()) == set(recipes) and names()[0] == DEFAULT
    files = {path.stem for path in shipped.FOLDER.glob("*.asbc")}
    assert files == set(recipes)
    assert "idm_matern" in (CONF / "calibrate.yaml").read_text()


@pytest.mark.parametrize("name", names())
def test_a_model_is_small_of_this_version_and_made_by_its_recipe(name):
    run = Run.open(name)
    assert isinstance(run, ShippedRun) and run.path.stat().st_size <= MOST_BYTES
    assert run.version == version("asbc")
    cfg = compose("models")
    wanted = [*cfg.shared, *cfg.recipes[name].overrides]
    assert [text for text in wanted if text not in run.overrides] == []
    assert run.card["title"] == cfg.recipes[name].title
    assert run.card["limits"] == list(cfg.recipes[name].limits)
    text = card_text(run)
    assert run.digest in text and all(p in text for p in run.simulator.prior.names)


@pytest.mark.parametrize("name", names())
def test_a_model_calibrates_drivers(name, drivers, tmp_path):
    fit = Run.open(name).calibrate(drivers, samples=50)
    prior = fit.model.simulator.prior
    assert len(fit) == len(drivers) and bool(prior.contains(fit.theta).all())
    assert fit.to_sumo(tmp_path / "d.add.xml").read_text().count("<vType ") == 300
    assert fit.flags["unlike_training"].mean() < 0.5


def test_the_default_finds_what_drivers_drove_by(drivers):
    """True values lie where the posterior says: in 90% intervals about as often."""
    many = Roads(platoons={"stop_and_go": 30, "lights": 30}, duration=40.0, seed=5).pairs()
    fit = Run.open(DEFAULT).calibrate(many, samples=200)
    order = [many.true_names.index(n) for n in fit.model.simulator.prior.names]
    truth = many.true_theta[:, order]
    low, high = torch.quantile(fit.theta, torch.tensor([0.05, 0.95]), dim=1)
    inside = ((truth >= low) & (truth <= high)).float().mean(0)
    # These drivers are nobody of the prior: their population is narrower.
    assert inside[:5].min() > 0.75


def test_a_changed_file_is_refused(tmp_path):
    for file in shipped.FOLDER.iterdir():
        shutil.copy(file, tmp_path)
    assert ShippedRun.open(DEFAULT, tmp_path).card
    path = tmp_path / f"{DEFAULT}.asbc"
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match="not the file that was shipped.*install asbc again"):
        ShippedRun.open(DEFAULT, tmp_path)
    path.unlink()
    with pytest.raises(InputError, match="is missing; install asbc again"):
        ShippedRun.open(DEFAULT, tmp_path)


def altered(folder, change):
    """A copy of the default model with another header, and the digest to go with it."""
    run = ShippedRun.open(DEFAULT)
    header = {k: v for k, v in run.header.items() if k not in ("tensors", "payload")}
    header = json.loads(json.dumps(header))
    change(header)
    digest = write_tensor_file(folder / f"{DEFAULT}.asbc", header, read_tensors(run.path))
    (folder / shipped.DIGESTS).write_text(json.dumps({DEFAULT: digest}))
    return folder


def test_a_model_names_no_code_but_ours(tmp_path):
    folder = altered(tmp_path, lambda h: h["config"]["data"].update(_target_="os.system"))
    with pytest.raises(InputError, match="names os.system"):
        ShippedRun.open(DEFAULT, folder)


def test_a_model_of_another_version_or_size_is_refused(tmp_path):
    folder = altered(tmp_path, lambda h: h["record"]["versions"].update(asbc="9.9.0"))
    with pytest.raises(InputError, match="made for asbc 9.9.0"):
        ShippedRun.open(DEFAULT, folder)
    folder = altered(tmp_path, lambda h: h["config"]["estimator"]["encoder"].update(layers=3))
    with pytest.raises(InputError, match="weights do not fit"):
        ShippedRun.open(DEFAULT, folder).posterior  # noqa: B018


def test_unknown_names_are_answered_with_the_known_ones():
    with pytest.raises(InputError, match=f"run=idm: no such folder, and no shipped.*{DEFAULT}"):
        Run.open("idm")
    with pytest.raises(InputError, match="no shipped model of this name"):
        ShippedRun.open("idm")


def test_models_are_made_bit_for_bit_and_keep_what_was_trained(tmp_path, monkeypatch):
    """A tiny recipe, twice: same bytes, and the draws of the run behind it."""
    from asbc.engine import LocalEngine

    monkeypatch.setattr("asbc.model_library.SCORED_DRIVERS", 6)
    tiny = [
        "data=roads",
        "data.platoons={queue:0,lights:6,stop_and_go:6,congested:0,motorway:0,free:0}",
        "data.duration=45",
        *("experiment=robust_stream", "residual=matern", "acquisition.simulations=512"),
        *("acquisition.chunk=256", "training.holdout_size=100", "bank.synthetic_cap=100"),
        *("encoder.model_dim=16", "flow.hidden=16", "data.context_steps=30"),
    ]
    recipes = {"tiny": Recipe(title="tiny", overrides=tiny, limits=["none"])}
    made = []
    for turn in ("a", "b"):
        folder = tmp_path / turn
        (folder / "files").mkdir(parents=True)
        [run] = make_models(recipes, [], folder / "runs", folder / "files", LocalEngine(workers=1))
        made.append(run)
    assert made[0].path.read_bytes() == made[1].path.read_bytes()
    assert "0 of" in overview(made) or " of 7" in overview(made)
    trained = Run.open(tmp_path / "a" / "runs" / "tiny" / "seed0")
    packed = ShippedRun.open("tiny", tmp_path / "a" / "files")
    pairs = packed.source().pairs()
    ours, theirs = (r.model().sample(pairs, 50, 0).theta for r in (packed, trained))
    spread = theirs.std(dim=1, keepdim=True)
    assert float(((ours - theirs).abs() / spread).median()) < 0.01
    assert packed.novelty(30).threshold == pytest.approx(trained.novelty(30).threshold, rel=1e-2)
    assert packed.novelty(20) is not None and packed.novelty(31) is None
    ours, theirs = packed.leaders(30), trained.leaders(30)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_the_front_door_takes_a_name(drivers):
    fit = asbc.calibrate(replace(drivers), DEFAULT, samples=20)
    assert fit.draws.shape[0] == 20 * len(drivers)
