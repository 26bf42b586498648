"""music: callbacks of Suno's song generation, and the files they tell of, kept before their addresses expire.

app           the Boathook, the source callbacks arrive at, what is measured
settings      the table [music]: who sends, how it is proven, what is kept where
callbacks     what a callback says, whoever wrote it
stages        how it moves a track: forward only
tracks        what is written about tracks and their callbacks
files         which files are wanted, and what became of each
keeping       how a file comes from its address into storage
kinds         what a file is by its bytes, and what it is called
storage       a folder, or what any storage must do; s3 and sigv4: a bucket
handlers      receive and store: the app's two kinds of deliveries
cleaning      removes what nobody needs, finds what is missing
delivery_log  what came, and the five things to do about it
chores        catching up with plain SQL, cleaning, gauges
routes        /api/music; commands: boathook music ...
simulator     made-up traffic, and what the books must say in the end; studio: the server of its files

README.md is for its owner.
"""

from boathook.apps.music import chores, commands, handlers, routes
from boathook.apps.music.app import hook

__all__ = ["chores", "commands", "handlers", "hook", "routes"]
