"""The numbers the paper reports (its Table 1, highD), for reference beside ours."""

from dataclasses import dataclass

METRICS = ("rmse_s", "rmse_v", "rmse_a", "es_s", "es_v", "es_a")
NOTE = (
    "Paper rows: highD, all windows, five seeds for ASBC. They are for reference only: other data "
    "are another task."
)


@dataclass(frozen=True)
class PaperRow:
    """Mean and, where the paper gives one, standard deviation over seeds of each metric."""

    label: str
    mean: tuple[float, ...]
    sd: tuple[float, ...] | None = None


PAPER_ROWS = (
    PaperRow(
        "ASBC-Gaussian",
        (2.633, 0.627, 0.291, 15.510, 3.571, 1.590),
        (0.150, 0.035, 0.018, 1.141, 0.248, 0.093),
    ),
    PaperRow(
        "ASBC-Matérn",
        (2.455, 0.628, 0.302, 13.452, 3.367, 1.511),
        (0.209, 0.077, 0.031, 0.489, 0.278, 0.179),
    ),
    PaperRow("Pooled MA-IDM", (3.381, 1.088, 0.399, 24.591, 6.340, 2.378)),
    PaperRow("Pooled B-IDM", (3.957, 1.044, 0.439, 26.709, 7.033, 2.744)),
)
