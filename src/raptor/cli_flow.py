"""`raptor flow`: check that no pipeline lets private data out, in every environment."""

from __future__ import annotations

import click


@click.command()
@click.option("--env", "envs", multiple=True, metavar="NAME", help="Only this environment; all by default.")
@click.pass_context
def flow(ctx: click.Context, envs: tuple[str, ...]) -> None:
    """Check the labels of the catalog and of every pipeline, in each environment."""
    from raptor.hooks.flow_hook import check_project
    from raptor.project import bootstrap

    reports = check_project(bootstrap(), list(envs) or None)
    for report in reports:
        found = f"{len(report.leaks)} leaks" if report.leaks else "no leak"
        click.echo(f"{report.env}: {report.pipelines} pipelines, {report.datasets} data sets, {found}")
        for leak in report.leaks:
            click.echo(f"  {leak}")
    if any(report.leaks for report in reports):
        ctx.exit(1)
