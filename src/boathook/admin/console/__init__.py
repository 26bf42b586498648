"""The operators' console: pages written by the server, complete without scripts but for what is live.

`frame` is what all pages share: templates, files, headers, and how errors are shown; `visits` is what all visits share.
`pages` is a visit of somebody who has signed in, and the routes of an area. `app` puts the areas together, `signing_in`
is the way in. An area, such as `events`, reads its forms, calls an action of `boathook.admin`, and shows what came of
it; nothing is decided here. Customers come by `portal` and `portal_visits`, to the pages of their application alone.
"""

from boathook.admin.console.app import build_console as build_console
