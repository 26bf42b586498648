"""Every action of operators and API users, once. The API, console and command line call it and nothing below it."""
