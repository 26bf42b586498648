"""Diagnoses an installation; each finding says how to fix it."""

from boathook.service.operating.doctor.handlers import CheckStatus, Finding, examine_loaded
from boathook.service.operating.doctor.handlers import examine as examine_handlers
from boathook.service.operating.doctor.setup import check_settings, examine, examine_all, examine_settings

__all__ = [
    "CheckStatus",
    "Finding",
    "check_settings",
    "examine",
    "examine_all",
    "examine_handlers",
    "examine_loaded",
    "examine_settings",
]
