"""The operators' console: server-rendered pages that work without scripts, except for live updates.

`rendering` contains what all pages share: templates, static files, headers and errors. `context` contains what all
requests share. `routes` declares the pages of an area for signed-in operators, `app` combines the areas, and `login`
signs operators in. An area, such as `events`, reads its forms, calls an action of `boathook.service`, and shows the
result; it contains no business logic. Customers use `portal`, which shows only the pages of their application.
"""

from boathook.console.app import build_console as build_console
