"""Mutants: the safeguard that the second run of a scenario removes, and the invariants that this must break."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Mutant:
    """A scenario with one safeguard removed; it is caught when at least one of *breaks* is found broken."""

    patch: str = ""
    """A name of tests/faults/mutants/sitecustomize.py, for every boathook process."""
    breaks: frozenset[str] = frozenset()
    """Such as {"C1"}."""
    sql: str = ""
    """Statements run once in the scenario's own database, for safeguards that live there; see `without`."""
    server: Mapping[str, str] = field(default_factory=dict)
    """Settings of PostgreSQL."""
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Tables of boathook.toml."""

    label: str = ""
    """What is removed, in words for the report; the name of the patch if empty."""

    @property
    def name(self) -> str:
        """The removed safeguard."""
        return self.label or self.patch.replace("_", " ")


SOUND: Final = Mutant()
"""No safeguard is removed."""


def without(function: str, *changes: tuple[str, str]) -> str:
    """Return SQL that replaces text in a function of boathook's schema, and fails unless each text is there."""
    steps = "\n".join(
        f"if strpos(code, $old${old}$old$) = 0 then raise exception 'mutant: {function} does not hold this text any more'; end if;"
        f"\ncode := replace(code, $old${old}$old$, $new${new}$new$);"
        for old, new in changes
    )
    return f"""
    do $do$ declare code text := (select pg_get_functiondef(oid) from pg_proc
        where proname = '{function}' and pronamespace = 'boathook'::regnamespace);
    begin
        {steps}
        execute code;
    end $do$
    """


UNFENCED: Final = without(
    "settle",
    (" and fence = p_fence", ""),
    ("if not found then\n        raise exception 'lease lost", "if not found then return; end if; if false then\n        raise exception 'lease lost"),
)  # fmt: skip
"""Any worker may complete a delivery, with or without its lease."""

UNCOUNTED: Final = without(
    "record_failure",
    (
        "begin\n    select * into d",
        """begin
    if p_outcome = 'lost' then
        update boathook.delivery
        set state = 'pending', attempts = attempts - 1, due_at = clock_timestamp(), leased_by = null, lease_until = null
        where event_id = p_event and ordinal = p_ordinal and fence = p_fence;
        return found;
    end if;
    select * into d""",
    ),
)
"""Attempts are counted when they fail instead of at the claim, so an attempt whose worker died is not counted."""
