"""Runs the command line: ``python -m boathook``."""

from boathook.cli import main

main()
