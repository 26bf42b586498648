"""music: callbacks of Suno's song generation, and their files, stored before the URLs expire."""

from boathook_music import commands, handlers, jobs, routes
from boathook_music.app import hook

__all__ = ["commands", "handlers", "hook", "jobs", "routes"]
