"""Where a fact stands in a request."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Header:
    """A header, by its lower-case name."""

    name: str


@dataclass(frozen=True, slots=True)
class Query:
    """A parameter of the URL's query."""

    name: str


@dataclass(frozen=True, slots=True)
class Form:
    """A field of a form-urlencoded body."""

    name: str
    path: str = ""
    """Dotted path into the JSON document that the field holds; empty: the field itself."""


@dataclass(frozen=True, slots=True)
class Json:
    """A value in a JSON body, by its dotted path; a number counts into an array, ``*`` stands for each element."""

    path: str


@dataclass(frozen=True, slots=True)
class BasicPassword:
    """The password of HTTP Basic authentication (RFC 7617), under one user name."""

    username: str


Selector = Header | Query | Form | Json
