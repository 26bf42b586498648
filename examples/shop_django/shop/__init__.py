"""The project, and its only app."""
