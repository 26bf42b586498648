"""Reads the records in the spool folders of a host directly from the files, even while no process runs."""

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

from boathook.domain import ids
from boathook.ingest.spool_records import UnreadableRecord, decode
from boathook.spool.segment import read_segment
from boathook.spool.segment_store import PENDING_SUFFIX, REJECTED_FOLDER
from tests.faults.rig.store_state import Spooled


def read_spools(data: Path) -> Iterator[Spooled]:
    """Yield every event that waits below a data_dir, and those that PostgreSQL has refused."""
    for path in sorted((data / "spool").glob(f"*/*{PENDING_SUFFIX}")):
        try:
            content = path.read_bytes()
        except FileNotFoundError:  # drained while we looked
            continue
        for record in read_segment(content).records:
            try:
                event = decode(record.payload)
            except UnreadableRecord:
                continue
            yield Spooled(
                key=event.dedup_key,
                sha=sha256(event.body).hexdigest(),
                message="" if event.publication is None else ids.show(ids.MESSAGE, event.id),
                is_refused=path.parent.name == REJECTED_FOLDER,
            )
