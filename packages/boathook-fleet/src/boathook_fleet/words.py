"""Recognises the entity and the action in names and sentences, in English and Russian."""

import re
from enum import StrEnum
from typing import Final


class Entity(StrEnum):
    """The kinds of objects."""

    CAR = "car"
    CLIENT = "client"
    BOOKING = "booking"
    BRANCH = "branch"
    EMPLOYEE = "employee"
    MESSAGE = "message"


class Action(StrEnum):
    """The kinds of changes."""

    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"


_ENTITIES: Final = {
    Entity.BOOKING: ("booking", "order", "rent", "rental", "reservation", "брон", "аренд", "заказ"),
    Entity.EMPLOYEE: ("employee", "staff", "worker", "manager", "user", "сотрудник", "менеджер", "пользовател"),
    Entity.CAR: ("car", "vehicle", "auto", "машин", "автомобил", "авто"),
    Entity.CLIENT: ("client", "customer", "contact", "клиент", "контакт"),
    Entity.BRANCH: ("branch", "filial", "office", "филиал", "офис"),
    Entity.MESSAGE: ("message", "chat", "сообщени"),
}
"""English words, matched whole or as a plural; Russian stems, matched at a word's beginning."""
_ACTIONS: Final = {
    Action.DELETE: ("delete", "destroy", "remove", "удал"),
    Action.CREATE: ("create", "add", "new", "insert", "incoming", "outgoing", "созда", "добав", "нов"),
    Action.UPDATE: ("update", "change", "edit", "modify", "save", "cancel", "close", "измен", "обнов", "сохран",
                    "отмен", "редакт"),
}  # fmt: skip
_CAMEL: Final = re.compile(r"(?<=[a-zа-яё])(?=[A-ZА-ЯЁ])")  # noqa: RUF001 Russian letters
_WORD: Final = re.compile(r"[a-zа-яё]+")  # noqa: RUF001 the same
_NUMBER: Final = re.compile(r"(?:№|#|\bid\b[:= ]*)\s*(\d{1,18})\b|\b(\d{1,18})\b", re.IGNORECASE)
_MAX_LENGTH: Final = 500


def split_words(text: str) -> list[str]:
    """Return the lower-case words of a name or a sentence: ``bookingUpdated`` has two."""
    return _WORD.findall(_CAMEL.sub(" ", text[:_MAX_LENGTH]).lower())


def find_entity(text: str) -> Entity | None:
    """Return the entity in a name or a sentence: that of the first matching word."""
    return next(
        (entity for word in split_words(text) for entity, names in _ENTITIES.items() if _is_one(word, names)), None
    )


def find_action(text: str) -> Action | None:
    """Return the action in a name or a sentence."""
    return next(
        (action for word in split_words(text) for action, names in _ACTIONS.items() if _is_one(word, names)), None
    )


def find_number(text: str) -> str | None:
    """Return the number of an object in a sentence: after ``№``, ``#`` or ``id`` if there is one, else the first."""
    matches = list(_NUMBER.finditer(text[:_MAX_LENGTH]))
    marked = next((match[1] for match in matches if match[1]), None)
    return marked or next((match[2] for match in matches), None)


def _is_one(word: str, names: tuple[str, ...]) -> bool:
    return any(word.startswith(name) if name[0] > "z" else _is_form(word, name) for name in names)


def _is_form(word: str, name: str) -> bool:
    """Return whether an English word is *name* with an ending, such as ``cars``, ``modified`` or ``cancelled``."""
    if word == name or not word.startswith(name[:-1]):
        return word == name
    return word.removeprefix(name) in _ENDINGS or (name[-1] in "ey" and word[len(name) - 1 :] in _ENDINGS)


_ENDINGS: Final = frozenset({"s", "es", "ies", "ied", "ed", "d", "ing", "led", "lation"})
