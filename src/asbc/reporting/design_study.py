"""Does active design pay? Training runs of several budgets, scored against their simulations.

Scores of a run that need no evaluation: the loss on the synthetic hold-out; the target loss,
-log q at exact draws of the observed drivers of the test split (median and mean over drivers; the
validation split's is beside it in design.csv, for choices); C2ST between its posterior and the
exact one of simulated drivers (0.5: alike, 1: distinct); and the Energy Score on real validation
pairs after the context (mean of s, v and a). Those of exact posteriors need the extra `baselines`.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from asbc.engine import Engine
from asbc.errors import InputError
from asbc.evaluation.monitor import validation_scores
from asbc.evaluation.protocol import EvaluationSettings
from asbc.evaluation.scores import named
from asbc.exact.diagnostics import require_extra
from asbc.exact.reference import closeness, exact_of, observed_posteriors, target_scores
from asbc.reporting.figures.comparison import ablation_bars
from asbc.reporting.figures.convergence import Rounds, convergence
from asbc.reporting.figures.design import design_figure
from asbc.reporting.figures.style import save_figure
from asbc.reporting.html import Page, Picture, Section, write_page
from asbc.reporting.text_tables import TextTable, number, publish
from asbc.run import Run
from asbc.simulator.prior import quantile_grid
from asbc.training.loop import selected_by_rule
from asbc.utils.files import write_text
from asbc.utils.progress import progress

# Ways to spend simulations, in the order of legends; others come after them.
WAYS = (
    *("npe", "npe, symmetry", "targeted", "targeted, no selection", "targeted, symmetry"),
    *("targeted, simulations alone", "joint", "theta_only", "prior_only", "random", "stream"),
)
SCORES = {
    "loss": "hold-out loss",
    "target": "target loss, median",
    "target_mean": "target loss, mean",
    "c2st": "C2ST to the exact",
    "es": "ES, validation pairs",
}
NOTES = (
    "Hold-out loss: negative log density of the parameters of simulated drivers.",
    "Target loss: the same at exact posterior draws of the observed test drivers.",
    "C2ST: how well a classifier tells the posterior from the exact one; 0.5 alike, 1 distinct.",
    "ES: Energy Score on the validation pairs after the context, mean of s, v and a.",
    "prior: what the prior itself scores, which a network that learned nothing has.",
)
CAPTION = (
    "Scores against the number of simulations, mean and standard deviation over seeds. "
    "Dotted, or in numbers where it is far off: the prior's own."
)
# The paper's own rows, its full method first.
PAPER_WAYS = ("joint", "prior_only", "theta_only")
FIG5 = (
    "The paper's Fig. 5: the joint loop, round by round, first seed. Dashed: the round that the "
    "paper's stopping rule selects. Not as in the paper: its data are not these, a round that "
    "finds nothing better declines, the hold-out has leaders of its own, and all rounds are run."
)
FIG6 = (
    "The paper's Fig. 6: Energy Scores of the full method and its ablations, mean and standard "
    "deviation over seeds. Not as in the paper: validation pairs after the context, a network for "
    "this study, and as many gradient steps for each."
)
# Without the observed drivers as training pairs.
TARGETED, ALONE = "targeted", ", simulations alone"
# Share of its simulations with which targeted has to reach the loss of npe.
PROMISED = 2 / 3
PRIOR = "prior"


def write_design_study(
    runs: Sequence[Run],
    folder: Path,
    drivers: int,
    exact: Path,
    pages: Sequence[Path] = (),
    engine: Engine | None = None,
) -> list[str]:
    """Write design.csv, design.md, design.png and report.html; returns what to tell the user.

    Args:
        runs: finished training runs.
        folder: where the files go; runs that its design.csv holds are not scored again.
        drivers: simulated drivers behind C2ST.
        exact: folder in which their exact posteriors are kept.
        pages: Markdown pages whose block `design` takes the table.
        engine: where exact posteriors are sampled; None: in this process.
    """
    table = score_runs(runs, folder / "design.csv", drivers, exact, engine)
    summary, floor = over_seeds(table), floors(runs, exact, engine)
    text, saved = design_table(summary, floor), savings_table(table)
    both = f"{text.to_markdown()}\n\n{saved.to_markdown()}"
    write_text(folder / "design.md", both + "\n")
    for markdown in pages:
        publish(markdown, {"design": both})
    figure = design_figure(summary, floor, SCORES)
    pictures = [Picture(save_figure(figure, folder, "design"), CAPTION)]
    for name, figure, caption in paper_figures(runs, table):
        pictures.append(Picture(save_figure(figure, folder, name), caption))
    facts = {"runs": str(len(runs)), "simulated drivers with exact posteriors": str(drivers)}
    sections = [Section("Scores", NOTES, [text, saved], pictures)]
    unsure = int(table["unsure"].max())
    warning = f"The exact posteriors of {unsure} of {drivers} drivers did not converge."
    page = Page("Does active design pay?", facts, [warning] * bool(unsure), sections)
    write_page(page, folder / "report.html")
    return [text.to_plain(), saved.to_plain(), f"report: {folder / 'report.html'}"]


def score_runs(
    runs: Sequence[Run], path: Path, drivers: int, exact: Path, engine: Engine | None = None
) -> pd.DataFrame:
    """A row per run, its scores from `path` where the same weights have some of as many drivers.

    Every new row is written at once: an interrupted report goes on where it was.
    """
    require_extra()
    _require_each_once(runs)
    path.parent.mkdir(parents=True, exist_ok=True)
    before: Any = pd.read_csv(path).to_dict("records") if path.is_file() else []
    scored = {(row["weights"], row["drivers"]): row for row in before}
    table = {(row["weights"], row["drivers"], row["run"]): row for row in before}
    asked = []
    for run in progress(runs, "score", total=len(runs)):
        key = (run.model().fingerprint(), drivers)
        if key not in scored:
            scored[key] = score_weights(run, drivers, exact, engine)
        # Ways that decline every round end with the same weights: a run's row has its own words.
        row = scored[key] | {"weights": key[0], "drivers": drivers} | spent(run)
        asked.append((*key, row["run"]))
        if asked[-1] not in table:
            table[asked[-1]] = row
            pd.DataFrame(table.values()).to_csv(path, index=False)
    return pd.DataFrame([table[one] for one in asked])


def spent(run: Run) -> dict[str, Any]:
    """How a run spent its simulations, how many, and what the loop says of it."""
    rounds: Any = pd.read_csv(run.rounds).set_index("round")
    return {
        "run": f"{run.path.parent.name}/{run.path.name}",
        "residual": run.config["residual"]["name"],
        "way": way(run.config),
        "budget": budget(run.config),
        "seed": run.seed,
        "simulations": int(rounds["simulations"].iloc[-1]),
        "steps": int(rounds["steps"].sum()),
        "warmup_loss": float(rounds["loss"].iloc[0]),
        "loss": float(rounds.loc[run.selected_round, "loss"]),
    }


def score_weights(
    run: Run, drivers: int, exact: Path, engine: Engine | None = None
) -> dict[str, Any]:
    """What follows from a run's weights alone: distances to exact posteriors, and predictions."""
    reference = exact_of(run, drivers, exact, engine)
    table = closeness(run.posterior, reference, run.simulator.parameter_names)
    splits, steps = run.source().splits(), run.config["data"]["context_steps"]
    target = {
        split: target_scores(run.posterior, run.simulator, pairs, steps, exact, engine)
        for split, pairs in {"validation": splits.validation, "test": splits.test}.items()
    }
    return {
        "target": target["test"]["target_loss_median"],
        "target_mean": target["test"]["target_loss"],
        "target_validation": target["validation"]["target_loss_median"],
        **_validation_es(run),
        "c2st": float(table["c2st"].mean()),
        "unsure": int((~reference.converged).sum()),
    }


def floors(runs: Sequence[Run], exact: Path, engine: Engine | None = None) -> pd.DataFrame:
    """What the prior scores, a row per residual: its entropy, and -log p at the exact draws."""
    rows = {}
    for run in runs:
        residual = run.config["residual"]["name"]
        if residual in rows:
            continue
        prior, steps = run.simulator.prior, run.config["data"]["context_steps"]
        pairs = run.source().splits().test
        observed = observed_posteriors(run.simulator, pairs, steps, exact, engine)
        target = -prior.log_prob(observed.draws).double().mean(dim=1)[observed.converged]
        rows[residual] = {
            # The marginals are independent, and the grid has equally likely values of each.
            "loss": -float(prior.log_prob(quantile_grid(prior)).double().mean()),
            "target": float(target.median()),
            "target_mean": float(target.mean()),
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def _validation_es(run: Run) -> dict[str, float]:
    """Energy Scores on all validation pairs after the context; NaN if none is long enough."""
    pairs, steps = run.source().splits().validation, run.config["data"]["context_steps"]
    names = ("es", *named("es").columns)
    if not bool((pairs.lengths > steps + EvaluationSettings().horizon).any()):
        return dict.fromkeys(names, math.nan)
    scores = validation_scores(
        run.posterior, run.simulator, pairs, steps, len(pairs), first_start=steps
    )
    return {name: scores[f"validation_{name}"] for name in names}


def paper_figures(runs: Sequence[Run], table: pd.DataFrame) -> list[tuple[str, Figure, str]]:
    """Name, picture and caption of the paper's Fig. 5 and 6, from the largest budgets' runs."""
    largest = table["budget"].max()
    of_paper = [*PAPER_WAYS, "random"]
    place = {(row.residual, row.way, row.seed): i for i, row in enumerate(table.itertuples())}
    rounds, panels = {}, {}
    for residual, own in table[table["budget"] == largest].groupby("residual"):
        joint = place.get((residual, "joint", own["seed"].min()))
        if joint is not None:
            history = pd.read_csv(runs[joint].rounds)
            rounds[f"joint, {residual}"] = Rounds(
                history, selected_by_rule(history["loss"].tolist())
            )
        variants = {one: own[own["way"] == one] for one in of_paper if (own["way"] == one).any()}
        if len(variants) > 1:
            panels[str(residual)] = variants
    figures = []
    if rounds:
        figures.append(("fig5_convergence", convergence(rounds), FIG5))
    if panels:
        figures.append(("fig6_ablation", ablation_bars(panels), FIG6))
    return figures


def way(config: Mapping[str, Any]) -> str:
    """How a run spends its simulations: its acquisition, or npe where it has no active round."""
    acquisition, loop = config["acquisition"], config["training"]
    name = "npe" if loop["rounds"] == 0 else acquisition["name"]
    if name == TARGETED:
        name += ", no selection" if acquisition["uniform_share"] == 1 else ""
        name += "" if acquisition["known_share"] else ALONE
    return f"{name}, symmetry" if loop["symmetry"] else name


def budget(config: Mapping[str, Any]) -> int:
    """Simulations that a run may spend; it may stop before.

    Example:
        >>> loop = {"warmup_simulations": 4000, "rounds": 10, "pairs_per_round": 2000}
        >>> budget({"acquisition": {"name": "joint"}, "training": loop})
        24000
    """
    if "simulations" in config["acquisition"]:
        return config["acquisition"]["simulations"]
    loop = config["training"]
    return loop["warmup_simulations"] + loop["rounds"] * loop["pairs_per_round"]


def over_seeds(table: pd.DataFrame) -> pd.DataFrame:
    """Means and standard deviations by residual, way and budget, by their simulations."""
    grouped = table.groupby(["residual", "way", "budget"])
    result = grouped[["simulations", "steps", *SCORES]].mean()
    for name in SCORES:
        result[f"{name}_std"] = grouped[name].std()
    result["seeds"] = grouped.size()
    result = result.reset_index()
    ways = dict.fromkeys([*WAYS, *sorted(set(result["way"]))])
    result["way"] = pd.Categorical(result["way"], list(ways), ordered=True)
    return result.sort_values(["residual", "budget", "way"])


def design_table(summary: pd.DataFrame, floor: pd.DataFrame) -> TextTable:
    """A row per residual, way and budget: what was spent, and mean scores with their spread."""
    rows: list[list[str]] = []
    rules: list[int] = []
    for residual, own in summary.groupby("residual", sort=False):
        if rows:
            rules.append(len(rows))
        known: Any = {}
        if residual in floor.index:
            known = floor.loc[[residual]].iloc[0].to_dict()
        cells = [str(residual), PRIOR, "0", "–", "–"]
        rows.append([*cells, *(number(known[s]) if s in known else "–" for s in SCORES)])
        for _, row in own.iterrows():
            cells = [str(residual), str(row["way"]), f"{row['simulations']:,.0f}"]
            cells += [f"{row['steps']:,.0f}", str(row["seeds"])]
            cells += [_with_spread(row[name], row[f"{name}_std"]) for name in SCORES]
            rows.append(cells)
    header = ["residual", "way", "simulations", "steps", "seeds", *SCORES.values()]
    return TextTable(header, rows, rules=tuple(rules))


def savings_table(table: pd.DataFrame) -> TextTable:
    """Whether targeted design is below npe's target loss with two thirds of its simulations."""
    rows = []
    groups: Any = table[table["way"] == "npe"].groupby(["residual", "budget"])
    for (residual, spent), npe in groups:
        fewer = table["budget"].between(0.95 * PROMISED * spent, PROMISED * spent)
        for name in (TARGETED, TARGETED + ALONE):
            own = table[fewer & (table["residual"] == residual) & (table["way"] == name)]
            if not own.empty:
                rows.append([str(residual), f"{spent:,.0f}", name, *_saved(npe, own)])
    header = ["residual", "npe", "against", "its simulations", "target loss, npe", "its own"]
    return TextTable([*header, "better?", "hold-out loss, against npe"], rows)


def _saved(npe: pd.DataFrame, own: pd.DataFrame) -> list[str]:
    """Simulations, both target losses, which is better, and what the hold-out says."""
    gain = npe["target"].mean() - own["target"].mean()
    spread = math.hypot(npe["target"].std(), own["target"].std())
    return [
        f"{own['budget'].iloc[0]:,.0f}",
        _with_spread(npe["target"].mean(), npe["target"].std()),
        _with_spread(own["target"].mean(), own["target"].std()),
        "yes" if gain > spread else "no" if gain < -spread else "within the spread",
        f"{own['loss'].mean() - npe['loss'].mean():+.2f}",
    ]


def _with_spread(mean: float, spread: float) -> str:
    return number(mean) + ("" if pd.isna(spread) else f" ± {spread:.2g}")


def _require_each_once(runs: Sequence[Run]) -> None:
    """Raise if two runs are alike but for what a mean over seeds would hide."""
    seen: dict[tuple[str, str, int, int], Run] = {}
    for run in runs:
        residual = run.config["residual"]["name"]
        key = (residual, way(run.config), budget(run.config), run.seed)
        if key in seen:
            raise InputError(
                f"{run.shown} and {seen[key].shown} spend {key[2]} simulations in the same way "
                f"({key[1]}) with the same seed ({key[3]}); leave one out of runs="
            )
        seen[key] = run
