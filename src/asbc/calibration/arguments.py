"""Where a calibration goes, unless told: a folder inside the run, named after the data.

Imports nothing heavy, so that entry points can look at their arguments before Hydra starts.
"""

from collections.abc import Sequence
from pathlib import Path

from asbc.training.folder import quoted


def with_output(arguments: Sequence[str], kind: str) -> list[str]:
    """Command-line arguments with an `output=` of their own: RUN/<kind>/<name of the data>.

    Example:
        >>> with_output(["run=outputs/a", "data=pairs", "data.path=in/i80.csv"], "calibration")[-1]
        "output='outputs/a/calibration/i80'"
    """
    given = {text.partition("=")[0]: text.partition("=")[2].strip("'\"") for text in arguments}
    if "output" in given or given.get("run", "") in ("", "???"):
        return list(arguments)
    place = given.get("data.path") or given.get("data.root") or given.get("data", "own")
    return [*arguments, f"output={quoted(Path(given['run']) / kind / Path(place).stem)}"]
