"""The LightningModule: loss, weights, optimiser, checkpoints."""

import pytest
import pytorch_lightning as pl
import torch

from asbc.errors import InputError
from asbc.posterior.estimator import PosteriorEstimator
from asbc.utils.random import stream


@pytest.fixture
def prior(box_prior):
    return box_prior([0.5, 1.0], [2.0, 5.0])


@pytest.fixture
def estimator(make_estimator, prior):
    return make_estimator(prior)


@pytest.fixture
def batch(prior):
    states = torch.randn(16, 20, 3, generator=torch.Generator().manual_seed(0))
    return {"theta": prior.sample(16, stream(0, "theta")), "states": states}


def test_validation_loss_is_the_negative_physical_log_density(estimator, batch):
    estimator.eval()
    expected = -estimator.posterior.log_prob(batch["theta"], batch["states"]).mean()
    torch.testing.assert_close(estimator.validation_step(batch), expected)


def test_training_loss_has_dropout_and_public_densities_do_not(estimator, batch):
    estimator.train()
    still = [estimator.posterior.log_prob(batch["theta"], batch["states"]) for _ in range(2)]
    assert torch.equal(*still)
    assert estimator.training and estimator.posterior.encoder.training
    assert not torch.equal(estimator.training_step(batch), estimator.training_step(batch))


def test_weights(estimator, batch):
    estimator.eval()
    weight = torch.rand(16)
    expected = -(weight * estimator.posterior.log_prob(batch["theta"], batch["states"])).mean()
    weighted = estimator.validation_step({**batch, "weight": weight})
    torch.testing.assert_close(weighted, expected)
    ones = estimator.validation_step({**batch, "weight": torch.ones(16)})
    torch.testing.assert_close(ones, estimator.validation_step(batch))


def test_gradient_reaches_every_parameter(estimator, batch):
    estimator.training_step(batch).backward()
    for name, parameter in estimator.named_parameters():
        assert parameter.grad is not None and float(parameter.grad.abs().max()) > 0, name


def test_adam_with_the_papers_step_size(estimator):
    optimizer = estimator.configure_optimizers()
    assert type(optimizer) is torch.optim.Adam
    assert optimizer.defaults["lr"] == 1e-3
    assert sum(p.numel() for g in optimizer.param_groups for p in g["params"]) == sum(
        p.numel() for p in estimator.parameters()
    )


def loader(batches):
    return torch.utils.data.DataLoader(batches, batch_size=None)


def fit(estimator, batch, folder):
    trainer = pl.Trainer(
        max_epochs=2,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        accelerator="cpu",
    )
    trainer.fit(estimator, loader([batch, batch]), loader([batch]))
    return trainer


def test_checkpoint_loads_with_weights_only(estimator, batch, tmp_path, make_estimator, prior):
    estimator.posterior.set_scaling(batch["theta"], 3 * batch["states"] + 1)
    trainer = fit(estimator, batch, tmp_path)
    assert {"train/loss", "val/loss"} <= set(trainer.callback_metrics)
    path = next(tmp_path.rglob("*.ckpt"))
    checkpoint = torch.load(path, weights_only=True)
    assert checkpoint["hyper_parameters"] == {
        "learning_rate": 1e-3,
        "parameter_names": ["p0", "p1"],
    }
    fresh = make_estimator(prior)
    loaded = PosteriorEstimator.load_from_checkpoint(
        path,
        weights_only=True,
        encoder=fresh.posterior.encoder,
        flow=lambda **_: fresh.posterior.flow,
        transform=fresh.posterior.transform,
        prior=prior,
    )
    theta, states = batch["theta"], batch["states"]
    assert torch.equal(
        loaded.posterior.log_prob(theta, states), estimator.posterior.log_prob(theta, states)
    )
    draws = [e.posterior.sample(states, 7, stream(0, "s")).theta for e in (loaded, estimator)]
    assert torch.equal(*draws)
    grids = [e.posterior.member(3).log_prob_grid(theta, states) for e in (loaded, estimator)]
    assert torch.equal(*grids)
    assert torch.equal(loaded.posterior.input_std, estimator.posterior.input_std)


def test_checkpoint_of_other_parameters_is_refused(estimator, batch, tmp_path, make_estimator):
    fit(estimator, batch, tmp_path)
    other = make_estimator(type(estimator.posterior.prior)([0.5, 1.0, 1.0], [2.0, 5.0, 2.0]))
    checkpoint = torch.load(next(tmp_path.rglob("*.ckpt")), weights_only=True)
    with pytest.raises(InputError, match=r"trained for the parameters \['p0', 'p1'\]"):
        other.on_load_checkpoint(checkpoint)


@pytest.mark.parametrize("rate", [0, -1e-3, float("nan")])
def test_bad_learning_rate(make_estimator, prior, rate):
    good = make_estimator(prior).posterior
    with pytest.raises(InputError, match=f"estimator.learning_rate={rate}; expected a number abo"):
        PosteriorEstimator(good.encoder, lambda **_: good.flow, good.transform, prior, rate)
