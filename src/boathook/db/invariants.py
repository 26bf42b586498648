"""The invariants of the consistency check: what must hold, what a violation means, and how to fix it.

Each invariant belongs to the scan that checks it: of all events in ranges, or of the dedup keys, the conflicts or the
rejections. Each is a statement in `integrity.sql` that finds violations.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final

from boathook.domain import ids


@dataclass(frozen=True, slots=True)
class Invariant:
    """A condition that must hold."""

    statement: str
    title: str
    meaning: str
    """What a violation means, in one sentence."""
    remedy: str
    """What an operator can do about it."""
    prefix: str = ids.EVENT
    """Prefix of the ids that the statement returns."""


class SharedRead(Enum):
    """Data that a query reads once, for all its invariants."""

    NOTHING = None
    """The invariants read the tables themselves."""
    EVENTS = "gather_range"
    MEMORY = "gather_memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """Invariants and totals that are computed together, in ranges of ids."""

    title: str
    bound: str
    """The statement that finds the end of a range."""
    gathered: SharedRead = SharedRead.NOTHING
    sums: str | None = None
    witnesses: str | None = None
    rules: tuple[Invariant, ...]
    rows: int
    """Initially the most rows of one table in a range."""
    most_rows: int
    """The upper limit however fast the queries are; equal to `rows` if ranges do not adapt."""
    is_deep: bool = False
    """Whether it runs only in a check that reads all bytes."""


_INVESTIGATE: Final = (
    "Look for what deleted or wrote rows beside boathook: scripts, a restore of some tables only, damaged storage. "
    "Compare with a backup before you repair anything by hand."
)
_REPLAY: Final = "If the event was not handled, run it again: `boathook events replay ID`."
_REPORT_BUG: Final = (
    "boathook's own code never writes this: look for what else writes to its tables, and report it with the example."
)

EVENTS: Final = Scan(
    title="events and their deliveries",
    bound="find_event_bound",
    gathered=SharedRead.EVENTS,
    sums="sum_range",
    rows=4_000,
    most_rows=40_000,
    rules=(
        Invariant(
            "find_uneven_events",
            "every delivery exists",
            "Deliveries were lost, or added, since these events were accepted.",
            f"Too few: a recipient will not be served. {_REPLAY} {_INVESTIGATE}",
        ),
        Invariant(
            "find_undecided",
            "what is ignored was decided",
            "A delivery counts as ignored, but neither its handler nor an operator nor a resend by hand decided that.",
            f"{_REPLAY} Ask who writes to `boathook.audit` or `boathook.delivery_archive` by hand.",
        ),
        Invariant(
            "find_orphans",
            "nothing without its event",
            "These belong to an event that is not stored.",
            f"Deliveries among them cannot run, as there is nothing to hand over. {_INVESTIGATE}",
        ),
        Invariant(
            "find_open_and_settled",
            "no delivery both open and ended",
            "A delivery that ended may run again.",
            f"Stop the workers if the effect must not be doubled, and look at the attempts. {_REPORT_BUG}",
        ),
        Invariant(
            "find_delivered_twice",
            "one first delivery a recipient",
            "A recipient has two deliveries of one event or item.",
            f"Its effect may have happened twice: look at the recipient's own records. {_REPORT_BUG}",
        ),
        Invariant(
            "find_wrong_replays",
            "replays refer to original deliveries",
            "A handler would be given an event, or a part of one, that was never routed to it.",
            _REPORT_BUG,
        ),
        Invariant(
            "find_misnumbered",
            "replays numbered after first deliveries",
            "First deliveries and replays are mixed up.",
            f"Nothing is lost by that alone, but the sums cannot be trusted. {_REPORT_BUG}",
        ),
        Invariant(
            "find_miscounted_open",
            "attempts of open deliveries",
            "Attempts were made that are not recorded, or recorded that were not made.",
            f"The delivery may be tried more or less often than its policy says. {_INVESTIGATE}",
        ),
        Invariant(
            "find_miscounted_settled",
            "attempts of ended deliveries",
            "Attempts were made that are not recorded, or recorded that were not made.",
            f"The history of this delivery is incomplete; its result is kept. {_INVESTIGATE}",
        ),
        Invariant(
            "find_stray_attempts",
            "no attempt without its delivery",
            "The deliveries these attempts were made for are gone.",
            f"{_REPLAY} {_INVESTIGATE}",
        ),
        Invariant(
            "find_false_successes",
            "successes have a succeeded attempt",
            "A delivery counts as succeeded without a success.",
            f"Ask the recipient whether it has the event. {_REPLAY}",
        ),
        Invariant(
            "find_ended_twice",
            "nothing follows an end",
            "A delivery went on after an attempt had ended it, so its effect may be doubled.",
            f"Look at the recipient's own records for a doubled effect. {_REPORT_BUG}",
        ),
        Invariant(
            "find_illegal_deliveries",
            "open deliveries keep their rules",
            "A delivery is in a state that cannot be.",
            "The table's constraints forbid it, so one of them was dropped or not validated: "
            "restore it, then end this delivery by `boathook dead ignore` or run its event again.",
        ),
        Invariant(
            "find_illegal_ends",
            "ended deliveries keep their rules",
            "An outcome or attempt is in a state that cannot be.",
            f"The tables' constraints forbid it, so one of them was dropped or not validated. {_INVESTIGATE}",
        ),
        Invariant(
            "find_strangers",
            "endpoints get their own application's events",
            "An endpoint was sent, or will be, what belongs to another application.",
            "Disable the endpoint with `boathook endpoints disable` before more is sent; inform the event's owner.",
        ),
        Invariant(
            "find_unknown_applications",
            "every event's application is known",
            "These are for an application that never was.",
            f"These events will not be delivered. {_INVESTIGATE}",
        ),
        Invariant(
            "find_half_expunged",
            "deleted content is gone",
            "An event's content was to be deleted, and is still there.",
            "Empty `body` of these rows by hand if the content must not be kept.",
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
    most_rows=250_000,
    rules=(
        Invariant(
            "find_forgotten_events",
            "every event is remembered",
            "A repeated request would be accepted as another event.",
            "Should the sender repeat it, a handler will run again for the same fact. Look for what emptied "
            "`boathook.dedup`; a key that was lost cannot be made again by hand.",
        ),
        Invariant(
            "find_keys_without_event",
            "every dedup key has its event",
            "A request would be answered as a duplicate of an event that is not stored.",
            "What its sender repeats is answered 2xx and not taken. To take it, delete the key from `boathook.dedup` "
            f"and have the sender repeat it. {_INVESTIGATE}",
        ),
        Invariant(
            "find_shared_keys",
            "one dedup key an event",
            "Two keys claim one event or item.",
            f"Another event may have been rejected as a duplicate. {_REPORT_BUG}",
        ),
        Invariant(
            "find_wrong_key_bodies",
            "dedup keys know the right body",
            "A repeated request would count as a conflict, or a conflict as repeated.",
            "Run `boathook check --deep` to see whether the event or the key was changed.",
        ),
        Invariant(
            "find_wrong_items",
            "deliveries refer to their event",
            "A handler would be given the wrong part of an event.",
            _REPORT_BUG,
        ),
    ),
)

CONFLICTS: Final = Scan(
    title="conflicts",
    bound="find_conflict_bound",
    sums="sum_conflicts",
    rows=1_000,
    most_rows=20_000,
    rules=(
        Invariant(
            "find_wrong_conflicts",
            "conflicts differ from their event",
            "A conflict refers to nothing, or is none.",
            f"Where the event is missing it was lost: see 'every delivery exists'. {_INVESTIGATE}",
            ids.CONFLICT,
        ),
    ),
)

REJECTIONS: Final = Scan(
    title="rejections",
    bound="find_rejection_bound",
    sums="sum_rejections",
    rows=1_000,
    most_rows=20_000,
    rules=(
        Invariant(
            "find_wrong_rejections",
            "accepted rejections have their event",
            "A rejection is marked as accepted, but its event is not there.",
            "Clear `event_id` of the rejection and judge it again: `boathook rejections reverify ID`.",
            ids.REJECTION,
        ),
    ),
)

BODIES: Final = Scan(
    title="bodies",
    bound="find_memory_bound",
    rows=500,
    most_rows=20_000,
    is_deep=True,
    rules=(
        Invariant(
            "find_wrong_bodies",
            "bodies match their hashes",
            "Stored bytes are not those that were sent.",
            "Check the storage and its checksums (`pg_amcheck`, `pg_checksums`), and take the body from a backup or "
            "the sender. A replay would hand over the wrong bytes.",
        ),
    ),
)

CONFLICT_BODIES: Final = Scan(
    title="bodies of conflicts",
    bound="find_conflict_bound",
    rows=500,
    most_rows=20_000,
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
    "every order key has a head",
    "Deliveries wait for one that is not there, so they would wait for ever.",
    "A running keeper lets them go within seconds: see that one runs (`boathook serve --role keeper`), "
    "then check again.",
)

AUDIT_CHAIN: Final = Invariant(
    "page_seals",
    "the audit is as it was written",
    "Rows of the audit were changed, removed or put in after they were encrypted.",
    "Find out who can write to `boathook.audit` besides boathook, and compare it with a backup; boathook's log tells "
    "by `audit_sealed` which seals there were.",
)

GLOBAL_INVARIANTS: Final = (
    Invariant(
        "find_double_leases",
        "one lease an order key",
        "Two deliveries that must run one after another run at once.",
        "The unique index that forbids it is gone or damaged: rebuild it with `reindex`, and see the rule on guards.",
    ),
    Invariant(
        "find_uncounted_purges",
        "purges are counted",
        "Dead letters were deleted without being counted, or counted without being deleted.",
        "`boathook.audit` or `boathook.purge_log` was changed manually; only the totals are affected.",
    ),
    Invariant(
        "find_missing_guards",
        "the schema's guards exist",
        "Without these guards the database would accept rows that cannot be.",
        "Restore what is named as `boathook migrate` made it, on a schema dumped from a new database; "
        "then check again, as the rows may be wrong by now.",
    ),
)

INVARIANTS: Final = (*(rule for walk in SCANS for rule in walk.rules), ORDER_KEYS, AUDIT_CHAIN, *GLOBAL_INVARIANTS)
"""All invariants, in the order of the report."""

SCHEMA_GUARDS: Final = (
    "a_lease_has_holder_and_end",
    "a_lease_is_a_counted_attempt",
    "the_dead_have_a_time_and_a_code",
    "only_ordered_pending_ones_wait_for_others",
    "a_replay_starts_a_new_budget",
    "an_item_has_a_path_and_a_type",
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
