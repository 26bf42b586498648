"""No models: Django reports the end of migrations only to applications with this module."""
