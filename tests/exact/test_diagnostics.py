"""A run that did not converge says so."""

import numpy as np
import pytest

from asbc.errors import InputError
from asbc.exact import diagnostics
from asbc.exact.diagnostics import Chains, Convergence, NutsSettings

NAMES = ("a", "b")


def chains_of(seed=0, shift=0.0, draws=500):
    theta = np.random.default_rng(seed).normal(size=(4, draws, 2))
    theta[0] += shift  # one chain elsewhere
    diverging = np.zeros((4, draws), dtype=bool)
    diverging[1, :3] = True
    return Chains({"theta": theta}, diverging, np.full((4, draws), 7))


def test_bad_settings_are_named():
    with pytest.raises(InputError, match="nuts.chains=1; expected at least 2"):
        NutsSettings(chains=1)
    with pytest.raises(InputError, match="nuts.target_accept=1.5"):
        NutsSettings(target_accept=1.5)
    with pytest.raises(InputError, match="nuts.max_r_hat=1.0; expected a number above 1"):
        NutsSettings(max_r_hat=1.0)
    with pytest.raises(InputError, match="nuts.min_ess=-1"):
        NutsSettings(min_ess=-1)


def test_independent_chains_converge():
    data = diagnostics.pooled_data(chains_of(), NAMES)
    assert list(data["posterior"]["theta"].parameter.values) == list(NAMES)
    verdict = diagnostics.check(data, NutsSettings())
    assert verdict.converged and verdict.remark == ""
    assert verdict.ess_bulk > 1500 and verdict.r_hat < 1.01
    assert verdict.warnings() == ["NUTS: 3 of 2000 draws diverged."]


def test_a_chain_elsewhere_is_found():
    verdict = diagnostics.check(
        diagnostics.pooled_data(chains_of(shift=1.0), NAMES), NutsSettings()
    )
    assert not verdict.converged and verdict.remark == "did not converge"
    assert verdict.r_hat > 1.05
    assert "largest r-hat" in verdict.warnings()[0]
    assert verdict.to_dict()["converged"] is False


def test_too_few_draws_are_found():
    verdict = diagnostics.check(
        diagnostics.pooled_data(chains_of(draws=50), NAMES), NutsSettings()
    )
    assert not verdict.converged and verdict.ess_bulk < 400


def test_the_drivers_that_failed_are_named():
    chains = [chains_of(1), chains_of(2, shift=2.0), chains_of(3)]
    data = diagnostics.driver_data(chains, NAMES, ["x", "y", "z"])
    assert data["posterior"]["theta"].dims == ("chain", "draw", "driver", "parameter")
    verdict = diagnostics.check(data, NutsSettings())
    assert verdict.drivers_not_converged == ("y",)
    assert verdict.remark == "1 of 3 drivers did not converge"
    np.testing.assert_array_equal(
        data["posterior"]["theta"].sel(driver="z"), chains[2].sites["theta"]
    )


def test_draws_by_importance_count_as_their_proposals():
    theta = np.stack([chains_of(seed).sites["theta"] for seed in (1, 2)], axis=2)
    data = diagnostics.repeated_data(theta, np.array([3000.0, 90.0]), NAMES, ["x", "y"])
    verdict = diagnostics.check(data, NutsSettings())
    assert verdict.ess_bulk == 90 and verdict.r_hat < 1.01
    assert verdict.drivers_not_converged == ("y",)
    assert (verdict.divergences, verdict.draws) == (0, 4000)


def test_drivers_sampled_again_count_by_their_new_draws():
    chains = [chains_of(1), chains_of(2, shift=2.0), chains_of(3, shift=2.0)]
    data = diagnostics.driver_data(chains, NAMES, ["x", "y", "z"])
    new = np.stack([chains_of(seed).sites["theta"] for seed in (4, 5)], axis=2)
    again = diagnostics.with_repeated(data, [1, 2], new, np.array([1900.0, 300.0]))
    verdict = diagnostics.check(again, NutsSettings())
    assert verdict.drivers_not_converged == ("z",) and verdict.ess_bulk == 300
    assert verdict.drivers_by_importance == ("y", "z")
    assert verdict.divergences == 3  # of x alone
    remark = "1 of 3 drivers did not converge, 2 of 3 drivers by importance sampling"
    assert verdict.remark == remark
    assert "NUTS did not converge on 2 of 3 drivers" in verdict.warnings()[1]
    np.testing.assert_array_equal(again["posterior"]["theta"].sel(driver="y"), new[:, :, 0])
    # What was given stays as it was.
    assert diagnostics.check(data, NutsSettings()).drivers_not_converged == ("y", "z")


def test_nan_is_no_convergence():
    stuck = Convergence(float("nan"), 1e4, 0, 10, 1.01, 400)
    good = Convergence(1.001, 900, 0, 4000, 1.01, 400)
    assert not stuck.converged
    assert not good.joined(stuck).converged and not stuck.joined(good).converged


def test_chains_that_never_moved_did_not_converge():
    stuck = chains_of(2)
    stuck.sites["theta"][..., 1] = 0.5
    assert not diagnostics.check(diagnostics.pooled_data(stuck, NAMES), NutsSettings()).converged
    data = diagnostics.driver_data([chains_of(1), stuck], NAMES, ["x", "y"])
    verdict = diagnostics.check(data, NutsSettings())
    assert verdict.drivers_not_converged == ("y",) and not verdict.converged


def test_two_runs_are_as_good_as_the_worse():
    good = Convergence(1.001, 900, 0, 4000, 1.01, 400)
    bad = Convergence(1.02, 2000, 5, 1000, 1.01, 400, drivers=3, drivers_not_converged=("x",))
    both = good.joined(bad)
    assert (both.r_hat, both.ess_bulk, both.divergences) == (1.02, 900, 5)
    assert not both.converged and both.remark == "1 of 3 drivers did not converge"
    assert bad.joined(bad).remark == "did not converge"
    assert good.joined(good).remark == "" and good.joined(good).drivers == 0


def test_inference_data_survives_netcdf(tmp_path):
    import arviz as az

    population = {
        "mean": np.zeros((4, 500, 2)),
        "sd": np.ones((4, 500, 2)),
        "correlation": np.broadcast_to(np.eye(2), (4, 500, 2, 2)),
        "theta": np.ones((4, 500, 3, 2)),
    }
    first = diagnostics.population_data(
        Chains(population, np.zeros((4, 500), bool), np.ones((4, 500))), NAMES, list("abc")
    )
    second = diagnostics.driver_data([chains_of()], NAMES, ["x"])
    repeated = diagnostics.repeated_data(np.ones((4, 500, 1, 2)), np.ones(1), NAMES, ["x"])
    assert "sample_stats" not in diagnostics.with_population(repeated, first).groups()
    both = diagnostics.with_population(second, first)
    both.to_netcdf(str(tmp_path / "posterior.nc"), engine="h5netcdf")
    read = az.from_netcdf(str(tmp_path / "posterior.nc"), engine="h5netcdf")
    assert set(read.groups()) >= {"posterior", "sample_stats", "population_posterior"}
    np.testing.assert_array_equal(read["posterior"]["theta"], both["posterior"]["theta"])
