"""The commands of the package, as the help lists them."""

from typing import Final

from boathook.cli.commands import CommandEntry, example

_TITLE: Final = "Getting started"
demo: Final = CommandEntry(
    "boathook_dev.demo:demo",
    "Start everything on an embedded PostgreSQL and send realistic signed traffic for a few minutes.",
    example("boathook demo --seconds 20", "boathook demo --buffer rabbitmq"),
    title=_TITLE,
)
dev: Final = CommandEntry(
    "boathook_dev.dev:dev",
    "Serve while you write handlers: restarts when a file is saved, and prints one line for each attempt.",
    example("boathook dev --port 8080"),
    title=_TITLE,
)
init: Final = CommandEntry(
    "boathook_dev.init:init",
    "Write the files of a new project: settings, a handler, and a test of it that passes.",
    example("boathook init --source stripe"),
    title=_TITLE,
)
listen: Final = CommandEntry(
    "boathook_dev.listen:listen",
    "Show events as they are accepted, and forward them to a local server, signed again.",
    example("boathook listen --url https://hooks.example.com --forward-to localhost:3000/hook --secret env:LOCAL"),
    title=_TITLE,
)
