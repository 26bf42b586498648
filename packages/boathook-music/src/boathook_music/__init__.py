"""music: callbacks of Suno's song generation, and their files, stored before the URLs expire.

app           the Boathook, the source of callbacks, and the metrics
settings      the table [music]: the sender, its proof, and storage
callbacks     parses callbacks of all resellers
stages        moves a track through its stages, forward only
lookup        asks the reseller for songs whose callback has not come
tracks        stores tracks and their callbacks
files         stores which files are wanted, and their state
file_download fetches a file and puts it into storage
kinds         detects formats by content, and names objects
storage       a folder, and the interface of all storages; s3 and sigv4: a bucket
links         signed links to stored files
handlers      receive and store: the app's two kinds of deliveries
cleaning      removes unused objects, and finds missing ones
delivery_log  lists received callbacks, with five operations on them
owner_tables  import of an owner's tables, and the view and functions under their names (views.sql)
jobs          periodic jobs: apply waiting callbacks, cleaning, gauges
routes        /api/music; commands: boathook music ...
simulator     generated traffic, and the expected results; file_server: serves its files
example_requests  varies the callbacks that resellers document

README.md is for operators.
"""

from boathook_music import commands, handlers, jobs, routes
from boathook_music.app import hook

__all__ = ["commands", "handlers", "hook", "jobs", "routes"]
