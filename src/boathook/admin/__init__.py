"""Operators: every action once; the command line, the API and the console only call it."""
