"""Numbers with their nouns in messages."""


def plural(number: int, noun: str) -> str:
    """Return *noun* as it stands after a number: ``delivery`` after 1, otherwise ``deliveries``."""
    if number == 1:
        return noun
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return f"{noun[:-1]}ies"
    return f"{noun}es" if noun.endswith(("s", "ch")) else f"{noun}s"


def format_count(number: int, limit: int) -> str:
    """Return a count for display; a number that reached the limit of counting ends in a plus."""
    return f"{number:,}".replace(",", "\N{NARROW NO-BREAK SPACE}") + ("+" if number >= limit else "")


def counted(number: int, noun: str) -> str:
    """Return a number and its noun, such as ``1 delivery`` or ``1,200 deliveries``."""
    return f"{number:,} {plural(number, noun)}"
