"""What one step of a task came to."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one step came to."""

    data: Mapping[str, Any]
    place: Mapping[str, Any] | None
    """Where the next step goes on, and no sooner than its ``not_before``; None at the end."""
