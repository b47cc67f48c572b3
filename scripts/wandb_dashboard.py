"""The dashboard as code: on W&B, as a file, or as a picture for those without an account.

python scripts/wandb_dashboard.py --entity NAME --project asbc
python scripts/wandb_dashboard.py --entity NAME --dry-run workspace.json
python scripts/wandb_dashboard.py --runs 'outputs/study/small/*/*' --picture dashboard.png
"""

import argparse
from pathlib import Path


def main() -> None:
    """Save the workspace on the server, to a file, or draw the same panels from run folders."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--entity", help="W&B user or team")
    parser.add_argument("--project", default="asbc")
    parser.add_argument("--dry-run", type=Path, help="write the workspace here instead")
    parser.add_argument("--runs", help="glob of evaluated run folders")
    parser.add_argument("--picture", type=Path, default=Path("dashboard.png"))
    given = parser.parse_args()
    if given.runs:
        from asbc.reporting.collect import find_runs, with_suffixes
        from asbc.reporting.wandb import draw_dashboard

        draw_dashboard(with_suffixes(find_runs(given.runs))).savefig(given.picture, dpi=150)
        print(f"picture: {given.picture}")
        return
    if not given.entity:
        parser.error("--entity NAME for W&B, or --runs GLOB for a local picture")
    from asbc.reporting.wandb import build_workspace, workspace_json

    workspace = build_workspace(given.entity, given.project)
    if given.dry_run:
        given.dry_run.write_text(workspace_json(workspace))
        print(f"workspace: {given.dry_run}")
    else:
        print(f"workspace: {workspace.save().url}")


if __name__ == "__main__":
    main()
