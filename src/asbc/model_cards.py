"""Cards of shipped models as text: what each was trained on, and how far to trust it."""

from collections.abc import Sequence

from asbc.shipped import DEFAULT, ShippedRun


def overview(runs: Sequence[ShippedRun]) -> str:
    """All models, a line each."""
    rows = [("run=", "model", "parameters", "kB", "SBC passed", "95% s/v/a")]
    for run in runs:
        scores = run.card["scores"]
        passed = sum(found["passed"] for found in scores["sbc"].values())
        rows.append(
            (
                run.name + (" (default)" if run.name == DEFAULT else ""),
                run.card["title"],
                " ".join(p["name"] for p in run.card["parameters"]),
                f"{run.path.stat().st_size / 1000:.0f}",
                f"{passed} of {len(scores['sbc'])}" if scores["sbc"] else "predictive",
                "/".join(f"{100 * share:.0f}" for share in scores["coverage95"].values()),
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(line.rstrip() for line in lines)


def card_text(run: ShippedRun) -> str:
    """The card of one model."""
    card, scores = run.card, run.card["scores"]
    ranges = card["ranges"]
    noise = ", ".join(f"{k} {v:g}" for k, v in card["robust"].items() if v) or "none"
    covered = " / ".join(f"{share:.0%}" for share in scores["coverage95"].values())
    lines = [
        f"{run.name}: {card['title']}",
        f"  version      asbc {run.version}, SHA-256 {run.digest}",
        f"  reads        {card['context']}; other steps from 0.04 to 0.5 s are resampled",
        f"  at home      leaders {_range(ranges['leader_speed'])} m/s, "
        f"gaps {_range(ranges['gap'])} m",
        f"  trained      {card['simulations']:,} simulations behind {card['leaders']}",
        f"  allows for   {noise} (conf/robust)",
        f"  size         {card['weights']:,} weights, {run.path.stat().st_size / 1000:.0f} kB",
        f"  coverage     {covered} of gaps / speeds / accelerations in 95% intervals "
        f"({scores['test_drivers']} simulated test drivers)",
        "  parameters   prior range"
        + (
            f", and on {scores['simulated_drivers']} drivers drawn from it: SBC, contraction, "
            "95% coverage"
            if scores["sbc"]
            else "; trained to predict, so that ranks of simulated drivers (SBC) say nothing"
        ),
    ]
    for parameter in card["parameters"]:
        ends = _range([parameter["low"], parameter["high"]])
        line = f"    {parameter['name']:<6} {ends:>14} {parameter['unit']:<6}"
        if scores["sbc"]:
            found = scores["sbc"][parameter["name"]]
            verdict = "passed" if found["passed"] else "FAILED"
            line += f" {verdict} (p = {found['p_value']:.3f}), "
            line += f"{found['contraction']:.2f}, {found['coverage95']:.0%}"
        lines.append(line.rstrip())
    limits = [*card["limits"], *scores["warnings"]]
    return "\n".join([*lines, *(f"  limit        {text}" for text in limits)])


def _range(ends: Sequence[float]) -> str:
    return f"{ends[0]:.3g} to {ends[1]:.3g}"
