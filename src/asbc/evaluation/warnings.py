"""What a reader must know before trusting the numbers, in plain words."""

from typing import Any

LOW_COVERAGE = 0.90
MANY_FLAGGED = 0.10
HIGH_LEAK = 0.05
MANY_COLLISIONS = 0.01

VARIABLE_NAMES = {"s": "gap", "v": "speed", "a": "acceleration"}


def plain_warnings(metrics: dict[str, Any]) -> list[str]:
    """Every reason to be careful with these results; empty when there is none."""
    return [
        *_coverage(metrics),
        *_flagged(metrics.get("novelty")),
        *_leak(metrics["posterior"].get("leak_rate")),
        *_ranks(metrics.get("simulated_drivers")),
        *_collisions(metrics["after_context"]["collision_rate"]),
    ]


def _coverage(metrics: dict[str, Any]) -> list[str]:
    scores, when = metrics["after_context"], "after the context"
    lines = []
    if not scores["n_windows"]:
        scores, when = metrics["all_windows"], "of the whole recording"
        lines.append(
            "No pair is long enough for a window after its context: every score is on data that "
            "overlap what the model has seen."
        )
    low = {
        name: scores[f"coverage95_{x}"]
        for x, name in VARIABLE_NAMES.items()
        if scores[f"coverage95_{x}"] < LOW_COVERAGE
    }
    if low:
        shares = ", ".join(f"{share:.0%} of the {name}s" for name, share in low.items())
        lines.append(
            f"Predictions are overconfident: on windows {when}, 95% intervals hold only {shares}."
        )
    return lines


def _flagged(novelty: dict[str, Any] | None) -> list[str]:
    if novelty is None or novelty["share_flagged"] <= MANY_FLAGGED:
        return []
    count = len(novelty["flagged"])
    return [
        f"{novelty['share_flagged']:.0%} of the drivers ({count}) drive unlike 99% of the "
        "simulations the model was trained on; their posteriors are extrapolations."
    ]


def _leak(rate: float | None) -> list[str]:
    if rate is None or rate <= HIGH_LEAK:
        return []
    return [
        f"{rate:.0%} of the posterior draws fell outside the prior's range and were redrawn; "
        "transform=bounded avoids this."
    ]


def _ranks(checks: dict[str, Any] | None) -> list[str]:
    if checks is None:
        return []
    off = [name for name, p in checks["parameters"].items() if not p["sbc_inside_band"]]
    if not off:
        return []
    return [
        "On simulated drivers the posterior is not calibrated for "
        f"{', '.join(off)}: its intervals do not hold the truth as often as they say."
    ]


def _collisions(rate: float | None) -> list[str]:
    if rate is None or rate <= MANY_COLLISIONS:
        return []
    return [f"{rate:.1%} of the simulated drives after the context end in a collision."]
