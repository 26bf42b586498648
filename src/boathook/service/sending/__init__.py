"""Actions on what is sent: applications, endpoints, event types, messages and attempts."""
