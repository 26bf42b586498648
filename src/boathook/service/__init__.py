"""Implements every action of operators and API users once, for the API, the console and the command line."""
