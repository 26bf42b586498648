"""Signed links to stored files, for players and browsers."""

from boathook_app_tools.file_links import FileLinks
from boathook_music import files
from boathook_music.app import hook, languages, settings, storage

links = FileLinks(
    hook,
    "/api/music/files",
    languages,
    storage=storage,
    lifetime_s=lambda: settings().links_s,
    public_url=lambda: settings().public_url,
    content_type=files.content_type_of,
)
