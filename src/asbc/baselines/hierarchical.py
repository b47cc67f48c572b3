"""A hierarchical Bayesian IDM: drivers differ, but come from one population."""

from dataclasses import dataclass, field

import numpy as np

from asbc.baselines.method import Fitted, Task
from asbc.engine import Engine
from asbc.errors import InputError
from asbc.exact import diagnostics
from asbc.exact.diagnostics import NutsSettings, require_extra, take_draws
from asbc.exact.statistics import statistics, transitions
from asbc.simulator.black_box import require_likelihood
from asbc.utils.random import key, stream

# A known driver of whom fewer draws count has a marginal likelihood with errors of its own.
FEW_DRAWS = 20


@dataclass(frozen=True)
class Hierarchical:
    """Population mean and covariance from the known drivers, then each test driver's posterior.

    A test driver's prior is the population as the known drivers show it, with its uncertainty; its
    likelihood is that of its own context, as for ASBC.

    Args:
        drivers: known drivers the population is learned from, drawn at random; None for all.
        population_draws: draws of the population that make up a test driver's prior.
        drivers_at_once: drivers sampled side by side.
        nuts: sampler settings.
        engine: where batches of so many drivers are sampled; None: one by one in this process.
    """

    drivers: int | None = None
    population_draws: int = 50
    drivers_at_once: int = 20
    nuts: NutsSettings = field(default_factory=NutsSettings)
    engine: Engine | None = None

    def __post_init__(self) -> None:
        for name in ("drivers", "population_draws", "drivers_at_once"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"baseline.{name}={value}; expected at least 1")

    def label(self, residual: str) -> str:
        """How tables name the method."""
        return f"Hierarchical ({residual})"

    def fit(self, task: Task) -> Fitted:
        """Sample the population, then every test driver."""
        require_likelihood(task.simulator, "baseline=hierarchical")
        require_extra()
        from asbc.baselines.hierarchical_model import population_draws, sample_population
        from asbc.exact.drivers import DriverModel, sample_by_importance

        simulator, test = task.simulator, task.test
        order = stream(task.seed, "population").permutation(len(task.known))
        known = task.known.select(np.sort(order[: self.drivers]))
        model = DriverModel.of(simulator)
        found = sample_population(
            model,
            statistics(simulator, transitions(simulator, known)),
            self.nuts,
            key(task.seed, "nuts", "population"),
            min(self.drivers_at_once, len(known)),
            self.engine,
        )
        new = sample_by_importance(
            model,
            population_draws(found.chains, self.population_draws),
            statistics(simulator, transitions(simulator, test, task.context_steps)),
            self.nuts,
            [key(task.seed, "importance", name) for name in test.pair_id],
            min(self.drivers_at_once, len(test)),
            self.engine,
        )
        names = simulator.parameter_names
        first = diagnostics.population_data(found.chains, names, known.pair_id)
        second = diagnostics.repeated_data(new.theta, new.ess, names, test.pair_id)
        verdict = diagnostics.check(first, self.nuts)
        drivers_verdict = diagnostics.check(second, self.nuts)
        details = {
            "known_pairs": len(known),
            "population_convergence": verdict.to_dict(),
            "test_driver_convergence": drivers_verdict.to_dict(),
            "known_driver_ess": {
                "smallest": float(found.driver_ess.min()),
                "median": float(np.median(found.driver_ess)),
                f"below_{FEW_DRAWS}": int((found.driver_ess < FEW_DRAWS).sum()),
            },
        }
        return Fitted(
            simulator,
            take_draws(new.theta, task.samples).transpose(0, 1),
            test,
            details,
            diagnostics.with_population(second, first),
            verdict.joined(drivers_verdict),
            found.worker_seconds + new.worker_seconds,
        )
