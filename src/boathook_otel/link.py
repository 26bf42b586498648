"""Finds the trace of an event, for the console."""

from collections.abc import Mapping

from boathook.config import Settings
from boathook.db.queries.listings import EventRow
from boathook.domain import ids
from boathook_otel.settings import TracingTable
from boathook_otel.spans import HEADER, trace_id_of


def find_trace(settings: Settings, event: EventRow, headers: Mapping[str, str]) -> tuple[str, str]:
    """Return an event's trace id and the URL of its trace, as `tracing.link` says.

    Both are empty if nothing is traced, and the URL if none is configured.

    Args:
        headers: those stored with the event, by their names in lower case.
    """
    table = settings.table(TracingTable)
    if table is None or not (table.is_on or table.link):
        return "", ""
    continues = event.source is None or table.incoming != "ignore"
    trace_id = trace_id_of(ids.read_event(event.id), headers.get(HEADER), continues=continues)
    return trace_id, table.link.replace("{trace_id}", trace_id)
