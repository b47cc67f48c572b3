"""The dashboard's panels as a W&B workspace; needs the extra `dashboard`."""

from typing import Any

from asbc.reporting.dashboard import PANELS, Bars, Lines, Panel

NAME = "ASBC"
GROUP = "method"  # config key that `announce` sets: residual and acquisition


def build_workspace(entity: str, project: str) -> Any:
    """A `wandb_workspaces.workspaces.Workspace`; `.save()` puts it on the server."""
    import wandb_workspaces.workspaces as ws

    sections = [
        ws.Section(name=name, panels=[_panel(panel) for panel in panels], is_open=True)
        for name, panels in PANELS.items()
    ]
    return ws.Workspace(entity=entity, project=project, name=NAME, sections=sections)


def workspace_json(workspace: Any) -> str:
    """What `.save()` would send."""
    # The client has no public export.
    return workspace._to_model().model_dump_json(by_alias=True, indent=2)


def _panel(panel: Panel) -> Any:
    import wandb_workspaces.reports.v2 as wr

    over_seeds: dict[str, Any] = {
        "groupby": GROUP,
        "groupby_aggfunc": "mean",
        "groupby_rangefunc": "stddev",
    }
    if isinstance(panel, Lines):
        own: dict[str, Any] = {"x": "round/round", "y": [f"round/{panel.metric}"]}
        return wr.LinePlot(title=panel.title, **own, **over_seeds)
    if isinstance(panel, Bars):
        own = {"metrics": [f"eval/all_windows/{name}" for name in panel.metrics]}
        return wr.BarPlot(title=panel.title, orientation="v", **own, **over_seeds)
    return wr.MediaBrowser(title=panel.title, media_keys=[f"eval/{n}" for n in panel.names])
