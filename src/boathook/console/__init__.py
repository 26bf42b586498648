"""The operators' console: pages written by the server, complete without scripts but for live updates.

`rendering` is what all pages share: templates, files, headers and errors; `context` is what all requests share.
`routes` declares the pages of an area for signed-in operators, `app` puts the areas together, and `login` signs
operators in. An area, such as `events`, reads its forms, calls an action of `boathook.service`, and shows the result;
nothing is decided here. Customers come by `portal` and `portal_context`, to the pages of their application alone.
"""

from boathook.console.app import build_console as build_console
