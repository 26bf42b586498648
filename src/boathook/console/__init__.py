"""The operators' console: server-rendered pages that work without scripts, except for live updates.

`routes` declares the pages of an area for signed-in operators, `app` lists the areas, and `login` signs operators in.
An area, such as `events`, reads its forms, calls an action of `boathook.service`, and shows the result; it contains no
business logic. `boathook.pages` contains what the console shares with the portal.
"""

from boathook.console.app import console_routes as console_routes
