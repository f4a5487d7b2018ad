"""``dsec job ls``, ``show`` and ``stop``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from dsec.cli.printing import print_facts, print_json, print_table
from dsec.cli.session import Json, command, with_client
from dsec.cli.values import age
from dsec.errors import NotFound

if TYPE_CHECKING:
    from dsec.api.jobs import JobInfo
    from dsec.api.types import SandboxInfo
    from dsec.client.client import DSecClient

__all__ = ["add"]

Name = Annotated[str, typer.Argument(metavar="JOB", help="The job's name.")]


def list_jobs(json: Json = False) -> None:
    """List jobs: who lives, what waits, how long the lease lasts."""
    found = with_client(lambda client: client.jobs())
    if json:
        print_json(found)
    else:
        print_table(("JOB", "STATE", "LIVE", "QUEUED", "MOST", "LEASE", "HELD SINCE"), map(_row, found))


def _row(job: JobInfo) -> tuple[str, ...]:
    now = time.time()
    left = f"{max(0.0, job.expires_at - now):.0f} s of {job.lease_s:g} s" if job.state == "held" else "over"
    most = "" if job.max_live is None else str(job.max_live)
    return job.name, job.state.value, str(job.live), str(job.queued), most, left, f"{age(now - job.acquired_at)} ago"


def show(name: Name, json: Json = False) -> None:
    """Show a job and its sandboxes, the ended ones of the last day included."""

    async def body(client: DSecClient) -> tuple[JobInfo, list[SandboxInfo]]:
        from dsec.api.types import SandboxState

        for job in await client.jobs():
            if job.name == name:
                return job, [one async for one in client.find(job=name, state=",".join(SandboxState))]
        raise NotFound(f"no job {name!r} on this node", remedy="`dsec job ls` lists them")

    job, sandboxes = with_client(body)
    if json:
        print_json({"job": job, "sandboxes": sandboxes})
        return
    head = ("JOB", "STATE", "LIVE", "QUEUED", "MOST", "LEASE", "HELD SINCE")
    print_facts([*zip([word.lower() for word in head], _row(job), strict=True), ("on lost", job.on_lost)])
    rows = [(one.id, one.state.value, one.cause or "", one.image, one.name or "") for one in sandboxes]
    print_table(("SANDBOX", "STATE", "CAUSE", "IMAGE", "NAME"), rows)


def stop(name: Name, json: Json = False) -> None:
    """End a job whoever holds it: its sandboxes are stopped, and every later call of its holder is refused."""
    done = with_client(lambda client: client.stop_job(name))
    if json:
        print_json(done)
    else:
        for sandbox_id in done.stopped:
            print(sandbox_id)
    if done.failed:
        raise typer.Exit(1)


def add(app: typer.Typer) -> None:
    """Register the commands."""
    jobs = typer.Typer(name="job", help="Jobs and their leases.", no_args_is_help=True)
    command(jobs, "ls")(list_jobs)
    command(jobs, "list", hidden=True)(list_jobs)
    command(jobs, "show")(show)
    command(jobs, "stop")(stop)
    app.add_typer(jobs)
