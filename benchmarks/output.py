"""Where a benchmark's table goes."""

from pathlib import Path


def publish(table: str, output: Path | None) -> None:
    """Print the table, and write it to a file where asked."""
    print(table)
    if output:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(f"{table}\n")
