"""The invariants of the consistency check: what must hold, what a violation means, and how to fix it.

Each invariant belongs to the scan that checks it: of all events in ranges, or of the dedup keys, the conflicts or the
rejections. Each is a statement in `integrity.sql` that finds violations.
"""

from enum import Enum
from typing import Final

import msgspec

from boathook.domain import ids


class Invariant(msgspec.Struct, frozen=True):
    """A condition that must hold."""

    statement: str
    title: str
    meaning: str
    """The meaning of a violation, in one sentence."""
    remedy: str
    """The fix, as an instruction for the operator."""
    prefix: str = ids.EVENT
    """Prefix of the ids that the statement returns."""


class SharedRead(Enum):
    """Data that a query reads once, for all its invariants."""

    NOTHING = None
    """The invariants read the tables themselves."""
    EVENTS = "gather_range"
    MEMORY = "gather_memory"


class Scan(msgspec.Struct, frozen=True, kw_only=True):
    """Invariants and totals that are computed together, in ranges of ids."""

    title: str
    bound: str
    """The statement that finds the end of a range."""
    gathered: SharedRead = SharedRead.NOTHING
    sums: str | None = None
    witnesses: str | None = None
    rules: tuple[Invariant, ...]
    rows: int
    """Initial maximum number of rows of one table in a range."""
    max_rows: int
    """The upper limit however fast the queries are; equal to `rows` if ranges do not adapt."""
    is_deep: bool = False
    """Whether it runs only in a check that reads all bytes."""


_INVESTIGATE: Final = (
    "Find out what else deleted or wrote rows: scripts, a partial restore, damaged storage. "
    "Compare with a backup before you repair anything manually."
)
_REPLAY: Final = "If the event was not handled, replay it: `boathook events replay ID`."
_REPORT_BUG: Final = (
    "boathook never writes this. Find out what else writes to its tables, and report it with the example."
)

EVENTS: Final = Scan(
    title="events and their deliveries",
    bound="find_event_bound",
    gathered=SharedRead.EVENTS,
    sums="sum_range",
    rows=4_000,
    max_rows=40_000,
    rules=(
        Invariant(
            "find_uneven_events",
            "every delivery exists",
            "Deliveries were lost, or added, since these events were accepted.",
            f"If there are too few, a recipient misses the event. {_REPLAY} {_INVESTIGATE}",
        ),
        Invariant(
            "find_undecided",
            "ignored deliveries have a decision",
            "A delivery is ignored, but neither its handler nor an operator nor a manual resend decided that.",
            f"{_REPLAY} Find out who changes `boathook.audit` or `boathook.delivery_archive` manually.",
        ),
        Invariant(
            "find_orphans",
            "no record without its event",
            "These records belong to an event that is not stored.",
            f"Deliveries among them cannot run without the event. {_INVESTIGATE}",
        ),
        Invariant(
            "find_open_and_settled",
            "no delivery both open and ended",
            "A delivery that ended may run again.",
            f"Stop the workers if a second effect would do harm, and look at the attempts. {_REPORT_BUG}",
        ),
        Invariant(
            "find_delivered_twice",
            "one original delivery per recipient",
            "A recipient has two deliveries of one event or item.",
            f"Its effect may have happened twice: compare with the recipient's own records. {_REPORT_BUG}",
        ),
        Invariant(
            "find_wrong_replays",
            "replays refer to original deliveries",
            "A handler would get an event or item that was never routed to it.",
            _REPORT_BUG,
        ),
        Invariant(
            "find_misnumbered",
            "replays are numbered after original deliveries",
            "Original deliveries and replays are mixed up.",
            f"Nothing is lost, but the totals are unreliable. {_REPORT_BUG}",
        ),
        Invariant(
            "find_miscounted_open",
            "attempts of open deliveries are recorded",
            "Attempts were made that are not recorded, or recorded that were not made.",
            f"The delivery may be tried more or less often than its policy says. {_INVESTIGATE}",
        ),
        Invariant(
            "find_miscounted_settled",
            "attempts of ended deliveries are recorded",
            "Attempts were made that are not recorded, or recorded that were not made.",
            f"The history of this delivery is incomplete; its result is kept. {_INVESTIGATE}",
        ),
        Invariant(
            "find_orphaned_attempts",
            "no attempt without its delivery",
            "The deliveries of these attempts are missing.",
            f"{_REPLAY} {_INVESTIGATE}",
        ),
        Invariant(
            "find_false_successes",
            "successes have a succeeded attempt",
            "A delivery is succeeded without a successful attempt.",
            f"Ask the recipient whether it has the event. {_REPLAY}",
        ),
        Invariant(
            "find_ended_twice",
            "no attempt after the final one",
            "A delivery was attempted again after its final attempt, so its effect may have happened twice.",
            f"Compare with the recipient's own records. {_REPORT_BUG}",
        ),
        Invariant(
            "find_illegal_deliveries",
            "open deliveries are in a valid state",
            "A delivery is in an invalid state.",
            "The table's constraints forbid it, so one of them was dropped or not validated: "
            "restore it, then end this delivery with `boathook dead ignore`, or replay its event.",
        ),
        Invariant(
            "find_illegal_ends",
            "ended deliveries are in a valid state",
            "An outcome or attempt is in an invalid state.",
            f"The tables' constraints forbid it, so one of them was dropped or not validated. {_INVESTIGATE}",
        ),
        Invariant(
            "find_strangers",
            "endpoints get their own application's events",
            "An endpoint was or will be sent an event of another application.",
            "Disable the endpoint with `boathook endpoints disable` before more is sent, and inform the event's owner.",
        ),
        Invariant(
            "find_unknown_applications",
            "every event's application exists",
            "The application of these events never existed.",
            f"These events will not be delivered. {_INVESTIGATE}",
        ),
        Invariant(
            "find_half_expunged",
            "expunged content is empty",
            "The content of an event should have been deleted, but is still stored.",
            "Empty `body` of these rows manually if the content must not be stored.",
        ),
    ),
)

DEDUP_MEMORY: Final = Scan(
    title="dedup memory",
    bound="find_memory_bound",
    gathered=SharedRead.MEMORY,
    sums="sum_memory",
    witnesses="list_witnesses",
    rows=4_000,
    max_rows=250_000,
    rules=(
        Invariant(
            "find_forgotten_events",
            "every event has its dedup key",
            "A repeated request would be accepted as another event.",
            "If the sender repeats it, handlers run again for the same event. Find out what emptied "
            "`boathook.dedup`; a lost key cannot be restored manually.",
        ),
        Invariant(
            "find_keys_without_event",
            "every dedup key has its event",
            "A request would be answered as a duplicate of an event that is not stored.",
            "A repeated request is answered 2xx and not stored. To accept it, delete the key from `boathook.dedup` "
            f"and ask the sender to repeat it. {_INVESTIGATE}",
        ),
        Invariant(
            "find_shared_keys",
            "one dedup key per event",
            "Two keys claim one event or item.",
            f"Another event may have been rejected as a duplicate. {_REPORT_BUG}",
        ),
        Invariant(
            "find_wrong_key_bodies",
            "dedup keys match the body",
            "A duplicate would count as a conflict, or a conflict as a duplicate.",
            "Run `boathook check --deep` to see whether the event or the key was changed.",
        ),
        Invariant(
            "find_wrong_items",
            "deliveries refer to items of their event",
            "A handler would get the wrong item of an event.",
            _REPORT_BUG,
        ),
    ),
)

CONFLICTS: Final = Scan(
    title="conflicts",
    bound="find_conflict_bound",
    sums="sum_conflicts",
    rows=1_000,
    max_rows=20_000,
    rules=(
        Invariant(
            "find_wrong_conflicts",
            "conflicts differ from their event",
            "A conflict refers to no event, or does not differ from it.",
            f"If the event is missing, it was lost: see 'every delivery exists'. {_INVESTIGATE}",
            ids.CONFLICT,
        ),
        Invariant(
            "find_wrong_acceptances",
            "accepted conflicts have their event",
            "A conflict is marked as accepted, but its event is missing or another one.",
            "Clear `accepted_as` of the conflict, and accept it again: `boathook conflicts accept ID`.",
            ids.CONFLICT,
        ),
    ),
)

REJECTIONS: Final = Scan(
    title="rejections",
    bound="find_rejection_bound",
    sums="sum_rejections",
    rows=1_000,
    max_rows=20_000,
    rules=(
        Invariant(
            "find_wrong_rejections",
            "accepted rejections have their event",
            "A rejection is marked as accepted, but its event is missing.",
            "Clear `event_id` of the rejection, and verify it again: `boathook rejections reverify ID`.",
            ids.REJECTION,
        ),
    ),
)

BODIES: Final = Scan(
    title="bodies",
    bound="find_memory_bound",
    rows=500,
    max_rows=20_000,
    is_deep=True,
    rules=(
        Invariant(
            "find_wrong_bodies",
            "bodies match their hashes",
            "Stored bytes are not those that were sent.",
            "Check the storage and its checksums (`pg_amcheck`, `pg_checksums`), and take the body from a backup or "
            "the sender. A replay would deliver the wrong bytes.",
        ),
    ),
)

CONFLICT_BODIES: Final = Scan(
    title="bodies of conflicts",
    bound="find_conflict_bound",
    rows=500,
    max_rows=20_000,
    is_deep=True,
    rules=(
        Invariant(
            "find_wrong_conflict_bodies",
            "conflicting bodies match their hashes",
            "Stored bytes are not those that were sent.",
            "Check the storage and its checksums (`pg_amcheck`, `pg_checksums`).",
            ids.CONFLICT,
        ),
    ),
)

SCANS: Final = (EVENTS, DEDUP_MEMORY, CONFLICTS, REJECTIONS, BODIES, CONFLICT_BODIES)

ORDER_KEYS: Final = Invariant(
    "page_heads",
    "every order key has an unblocked delivery",
    "Deliveries wait for one that is missing, so they would wait forever.",
    "A keeper unblocks them within seconds: check that one runs (`boathook serve --role keeper`), then check again.",
)

AUDIT_CHAIN: Final = Invariant(
    "page_seals",
    "the audit log is unchanged",
    "Entries of the audit log were changed, removed or added after they were sealed.",
    "Find out who can write to `boathook.audit` besides boathook, and compare it with a backup; the log lines "
    "`audit_sealed` show the seals.",
)

GLOBAL_INVARIANTS: Final = (
    Invariant(
        "find_double_leases",
        "one lease per order key",
        "Two deliveries that must run one after the other run at once.",
        "The unique index that forbids it is missing or damaged: rebuild it with `reindex`; see 'the schema's "
        "constraints exist'.",
    ),
    Invariant(
        "find_uncounted_purges",
        "purges are counted",
        "Dead letters were deleted without being counted, or counted without being deleted.",
        "`boathook.audit` or `boathook.purge_log` was changed manually; only the totals are affected.",
    ),
    Invariant(
        "find_missing_guards",
        "the schema's constraints exist",
        "Without these constraints, indexes or triggers, the database would accept invalid rows.",
        "Restore them from the schema of a new database that `boathook migrate` has created; "
        "then check again, because rows may be invalid by now.",
    ),
)

INVARIANTS: Final = (*(rule for walk in SCANS for rule in walk.rules), ORDER_KEYS, AUDIT_CHAIN, *GLOBAL_INVARIANTS)
"""All invariants, in the order of the report."""

SCHEMA_GUARDS: Final = (
    "delivery_lease_complete",
    "delivery_lease_counted",
    "delivery_dead_complete",
    "delivery_blocked_is_ordered",
    "delivery_attempts_before_in_range",
    "delivery_item_complete",
    "delivery_pkey",
    "delivery_one_lease_per_order_key",
    "dedup_pkey",
    "dedup_replay_key",
    "event_pkey",
    "attempt_pkey",
    "delivery_archive_pkey",
    "side_effect_pkey",
    "reply_pkey",
    "entity_version_pkey",
    "application_uid",
    "application_operational",
    "endpoint_uid",
    "endpoint_secret_current",
    "api_key_token_sha256_key",
    "idempotency_pkey",
    "route_changed",
)
"""Constraints, unique indexes and triggers that the invariants rely on."""
