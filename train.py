"""Train a posterior estimator by the active loop: `python train.py residual=matern seed=1`."""

import sys

import hydra
from omegaconf import DictConfig, OmegaConf

from asbc.training.folder import RunFolder, resume_arguments


@hydra.main(version_base="1.3", config_path="conf", config_name="train")
def main(cfg: DictConfig) -> float:
    """Build everything from the config and run the loop; returns the best hold-out loss."""
    # Imported here, so that --help, completion and mistakes in the arguments answer at once.
    import torch
    from hydra.core.hydra_config import HydraConfig
    from hydra.utils import instantiate

    from asbc.data.summary import write_summary
    from asbc.design.space import DesignSpace
    from asbc.training.checkpoint import AtomicCheckpointIO
    from asbc.training.config_tree import show_config
    from asbc.training.datamodule import SimulationDataModule
    from asbc.training.loggers import announce
    from asbc.training.run import (
        draw_seed,
        fit,
        last_words,
        loop_callbacks,
        observed_subset,
        quiet_lightning,
    )
    from asbc.training.settings import validate
    from asbc.utils.random import key

    quiet_lightning()
    cfg.seed = draw_seed() if cfg.seed is None else cfg.seed
    config = OmegaConf.to_container(cfg, resolve=True)
    settings = validate(config)
    show_config(config)
    folder = RunFolder(HydraConfig.get().runtime.output_dir)
    checkpoint = folder.checkpoint(cfg.ckpt_path)
    with folder.claim(resuming=checkpoint is not None):
        saved = OmegaConf.to_yaml(OmegaConf.merge(cfg, {"ckpt_path": None}), resolve=True)
        folder.write(saved, cfg.seed, HydraConfig.get().overrides.task)
        torch.set_num_threads(cfg.threads)

        splits = instantiate(cfg.data).splits()
        if checkpoint is None:
            write_summary(splits, folder.path)
        simulator = instantiate(cfg.robust)
        torch.manual_seed(key(cfg.seed, "weights"))
        estimator = instantiate(cfg.estimator)
        bank = instantiate(cfg.bank)(splits.train)
        subset = observed_subset(
            splits.train, cfg.data.context_steps, cfg.acquisition.subset_size, cfg.seed
        )
        data = SimulationDataModule(
            DesignSpace(simulator.prior, bank, subset, cfg.seed),
            simulator,
            instantiate(cfg.acquisition.strategy, _convert_="all"),
            settings,
            cfg.acquisition.correction,
        )
        own = loop_callbacks(instantiate(cfg.loop), data, folder)
        trainer = instantiate(
            cfg.trainer,
            callbacks=[*own, *map(instantiate, cfg.callbacks.values())],
            logger=[instantiate(logger) for logger in cfg.logger.values()] or False,
            plugins=[AtomicCheckpointIO()],
        )
        announce(trainer.loggers, config)
        loop = fit(trainer, estimator, data, checkpoint, folder)

    print(last_words(folder, loop))
    return loop.best_loss


if __name__ == "__main__":
    sys.argv[1:] = resume_arguments(sys.argv[1:])
    main()
