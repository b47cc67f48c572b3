"""`asbc page output=FILE.html`: one HTML file that calibrates drivers in a browser."""

from omegaconf import DictConfig


def main(cfg: DictConfig) -> None:
    """Write the page of a run's model, and say where it is."""
    # Imported here, so that --help, completion and mistakes in the arguments answer at once.
    from pathlib import Path

    from asbc.config import build
    from asbc.errors import InputError
    from asbc.page.page import write_page
    from asbc.run import Run
    from asbc.utils.checks import check_integer

    output = Path(cfg.output)
    if output.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"output={output}: expected a file that ends with .html")
    check_integer("example.pairs", cfg.example.pairs, minimum=1)
    run = Run.open(cfg.run)
    own = run.config["data"]
    steps, dt = own["context_steps"], own["dt"]
    shortest = max(cfg.data.min_duration, steps * dt)
    data = build(cfg.data, dt=dt, context_steps=steps, min_duration=shortest)
    size = write_page(run, output, data.pairs(), cfg.example.pairs)
    print(
        f"{run.shown}: {output} ({size / 1e3:.0f} kB); open it in a browser, it loads nothing else"
    )
