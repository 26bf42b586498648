"""Runs the steps of jobs whose operations need more than the database, for the keeper."""

import functools
from typing import TYPE_CHECKING

from boathook.config import Settings
from boathook.db.database import Connection, Database
from boathook.db.tasks import Task

if TYPE_CHECKING:
    from boathook.delivery.tasks import ServiceStep, StepResult
    from boathook.service.catalogue.stored_requests import StepRunner


def make_service_step(settings: Settings, database: Database) -> "ServiceStep":
    """Return what runs a step of such a job.

    Args:
        settings: the settings, without the stored sources.
        database: the keeper's database.
    """

    @functools.cache
    def make_runner() -> "StepRunner":
        # Imported with the first step only: it imports all provider recipes, and most keepers never run such a job.
        from boathook.service.catalogue.stored_requests import StepRunner

        return StepRunner(settings, database)

    async def step(connection: Connection, task: Task) -> "StepResult":
        return await make_runner().run(connection, task)

    return step
