"""`asbc models`: the models inside the package, and their cards."""

from omegaconf import DictConfig


def main(cfg: DictConfig) -> None:
    """Make the models that are asked for, or show what there is."""
    # Imported here, so that --help, completion and mistakes in the arguments answer at once.
    from pathlib import Path

    from asbc.errors import InputError
    from asbc.model_cards import card_text, overview
    from asbc.shipped import FOLDER, ShippedRun, names

    if cfg.make:
        from omegaconf import OmegaConf

        from asbc.config import build
        from asbc.model_library import Recipe, make_models

        wanted = list(cfg.recipes) if cfg.make == "all" else cfg.make
        if isinstance(wanted, str):
            raise InputError(f"make={wanted}: expected all or a list; write make=[{wanted}]")
        unknown = [name for name in wanted if name not in cfg.recipes]
        if unknown:
            known = ", ".join(cfg.recipes)
            raise InputError(f"make={unknown[0]}: expected all or some of {known}")
        found = OmegaConf.to_container(cfg.recipes, resolve=True)
        assert isinstance(found, dict)
        recipes = {name: Recipe(**found[name]) for name in wanted}
        into = Path(cfg.into or FOLDER)
        made = make_models(recipes, list(cfg.shared), cfg.output, into, build(cfg.engine))
        print("\n\n".join(card_text(run) for run in made))
        return
    if cfg.name is not None:
        print(card_text(ShippedRun.open(cfg.name)))
        return
    runs = [ShippedRun.open(name) for name in names()]
    text = "\n\n".join([overview(runs), *map(card_text, runs)])
    print(text)
    if cfg.publish is not None:
        from asbc.reporting.text_tables import publish

        publish(Path(cfg.publish), {"models": f"```text\n{text}\n```"})
