"""Whether a request is what its source says it is, and what names the event it brings."""

from boathook.inbound.verdict import Challenge, Reason, Rejected, Reply, Request, SourceSpec, Verdict, Verified

__all__ = ["Challenge", "Reason", "Rejected", "Reply", "Request", "SourceSpec", "Verdict", "Verified"]
