"""Looks a set-up over, part by part; each finding says what to do about it."""

from boathook.admin.doctor.finding import Finding, Verdict
from boathook.admin.doctor.handlers import examine as examine_handlers
from boathook.admin.doctor.setup import examine

__all__ = ["Finding", "Verdict", "examine", "examine_handlers"]
