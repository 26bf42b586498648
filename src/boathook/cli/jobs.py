"""Commands for bulk jobs."""

from typing import Final

import typer

from boathook.cli.derived import add
from boathook.cli.output import ID, STATE, Column, View, age_of
from boathook.service.catalogue import jobs as actions

jobs = typer.Typer(no_args_is_help=True, help="Bulk jobs: replays, and other actions on many objects.")
_VIEW: Final = View(
    (
        ID,
        Column("title"),
        STATE,
        Column("done", lambda job: f"{job.done} of {job.total}" if job.total else job.done),
        Column("by", "actor"),
        Column("age", age_of("started_at")),
        Column("note", is_optional=True),
        Column("error", is_optional=True),
    ),
    tuple(field.name for field in actions.get.result_fields if field.name != "results"),
)
add(jobs, actions.list_jobs, "list", view=_VIEW)
add(jobs, actions.get, "show", view=_VIEW)
add(jobs, actions.stop, "stop", view=_VIEW)
