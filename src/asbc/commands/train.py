"""`asbc train`: a posterior estimator by the active loop, e.g. `residual=matern seed=1`."""

from omegaconf import DictConfig

from asbc.arguments import resume_arguments as prepare

__all__ = ["main", "prepare"]


def main(cfg: DictConfig) -> float:
    """Train as the config says and tell where the run is; returns what it is judged by."""
    # Imported here, so that --help, completion and mistakes in the arguments answer at once.
    from hydra.core.hydra_config import HydraConfig

    from asbc.run import Run
    from asbc.training.cost import cost_of
    from asbc.training.train import last_words, train_run

    loop = train_run(cfg, HydraConfig.get().overrides.task)
    run = Run(cfg.folder)
    if loop.best_round >= 0:
        print(cost_of(run))
    print(last_words(run, loop))
    return loop.result
