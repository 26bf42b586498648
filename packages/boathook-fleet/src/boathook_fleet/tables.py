"""The tables of objects, and the names of their columns in the senders' data."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, tzinfo
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from boathook_fleet.parse import MAX_ID
from boathook_fleet.timestamp_formats import read_timestamp
from boathook_fleet.words import Entity

MAX_TEXT: Final = 2_000
_MAX_NUMBER: Final = 2**63 - 1
_MAX_MONEY: Final = Decimal(10) ** 12

Value = Any
Read = Callable[[Any], Value]


@dataclass(frozen=True, slots=True)
class Column:
    """A column, and the names of its value in senders' data, most likely first."""

    name: str
    keys: tuple[str, ...]
    read: Read


@dataclass(frozen=True, slots=True)
class Table:
    """The table of one kind of object."""

    name: str
    columns: tuple[Column, ...]
    references: Mapping[str, Entity]
    """Columns that reference another object, which must exist first; in the order in which all transactions lock."""

    def values(self, data: Mapping[str, Any], zone: tzinfo = UTC) -> dict[str, Value]:
        """Return the column values for an object with *data*; None for missing or unusable ones."""
        return {column.name: _pick(data, column, zone) for column in self.columns}

    def unparsed(self, data: Mapping[str, Any], zone: tzinfo = UTC) -> dict[str, Any]:
        """Return the fields of *data* that a column should take its value from, but cannot."""
        understood = {
            key
            for column in self.columns
            for key in column.keys
            if not is_empty(data.get(key)) and _read(column, data[key], zone) is not None
        }
        return {
            key: data[key]
            for column in self.columns
            if _pick(data, column, zone) is None
            for key in column.keys
            if not is_empty(data.get(key)) and key not in understood
        }


def _pick(data: Mapping[str, Any], column: Column, zone: tzinfo) -> Value:
    values = (_read(column, data.get(key), zone) for key in column.keys)
    return next((value for value in values if value is not None), None)


def _read(column: Column, value: Any, zone: tzinfo) -> Value:
    return read_timestamp(value, zone) if column.read is read_timestamp else column.read(value)


def is_empty(value: Any) -> bool:
    """Return whether a sender has cleared a field."""
    return value is None or (isinstance(value, str) and not value.strip())


def _text(value: Any) -> str | None:
    """Read a text; of an object with a name, return the name."""
    match value:
        case str():
            return value.strip()[:MAX_TEXT] or None
        case int() if not isinstance(value, bool):
            return str(value)[:MAX_TEXT]
        case {"name": str(name)} | {"title": str(name)} | {"text": str(name)}:
            return name[:MAX_TEXT]
        case _:
            return None


def _id(value: Any) -> str | None:
    """Read the id of another object; of a JSON object, return its id."""
    text = _text(value.get("id")) if isinstance(value, dict) else _text(value)
    return text if text and len(text) <= MAX_ID and text.isprintable() else None


def _whole(value: Any) -> int | None:
    number = _number(value)
    return int(number) if number is not None and abs(number) <= _MAX_NUMBER else None


def _money(value: Any) -> Decimal | None:
    number = _number(value)
    if number is None or abs(number) >= _MAX_MONEY:
        return None
    money = number.quantize(Decimal("0.01"))
    return money if abs(money) < _MAX_MONEY else None  # it may have been rounded up


def _number(value: Any) -> Decimal | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str) or len(str(value)) > 40:
        return None
    try:
        number = Decimal(str(value).replace(" ", "").replace(",", "."))
    except InvalidOperation:
        return None
    return number if number.is_finite() and number.adjusted() < 30 else None


_BRANCH: Final = Column("branch_id", ("branch_id", "branch", "filial_id", "company_id"), _id)
_NAME: Final = Column("name", ("name", "full_name", "fio", "title", "label"), _text)
_PHONE: Final = Column("phone", ("phone", "phone_number", "tel"), _text)
_EMAIL: Final = Column("email", ("email", "mail"), _text)
_STATE: Final = Column("state", ("state", "status"), _text)

_PLATES: Final = ("number", "plate_number", "car_number", "plate", "state_number", "gos_number", "code")
_EMPLOYEES: Final = ("employee_id", "responsible_id", "employee", "manager_id", "manager", "user_id")

TABLES: Final[Mapping[Entity, Table]] = {
    Entity.BRANCH: Table("branches", (_NAME, Column("address", ("address", "addr"), _text), _PHONE), {}),
    Entity.EMPLOYEE: Table(
        "employees",
        (_NAME, _EMAIL, _PHONE, Column("role", ("role", "position"), _text), _BRANCH),
        {"branch_id": Entity.BRANCH},
    ),
    Entity.CAR: Table(
        "cars",
        (
            Column("number", _PLATES, _text),
            Column("model", ("model", "car_name", "name", "title"), _text),
            Column("vin", ("vin",), _text),
            _STATE,
            Column("mileage", ("mileage", "odometer", "probeg"), _whole),
            _BRANCH,
        ),
        {"branch_id": Entity.BRANCH},
    ),
    Entity.CLIENT: Table(
        "clients", (_NAME, _PHONE, _EMAIL, _STATE, _BRANCH), {"branch_id": Entity.BRANCH}
    ),
    Entity.BOOKING: Table(
        "bookings",
        (
            _STATE,
            Column("starts_at", ("start_date", "starts_at", "start_at", "date_start", "from"), read_timestamp),
            Column("ends_at", ("end_date", "ends_at", "end_at", "date_end", "to"), read_timestamp),
            Column("price", ("total", "price", "rental_cost", "amount", "sum"), _money),
            Column("currency", ("currency",), _text),
            Column("car_id", ("car_id", "car", "vehicle_id"), _id),
            Column("client_id", ("client_id", "client", "customer_id"), _id),
            Column("employee_id", _EMPLOYEES, _id),
            _BRANCH,
        ),
        {
            "branch_id": Entity.BRANCH,
            "employee_id": Entity.EMPLOYEE,
            "car_id": Entity.CAR,
            "client_id": Entity.CLIENT,
        },
    ),
    Entity.MESSAGE: Table(
        "messages",
        (
            Column("lead_id", ("leadId", "lead_id"), _id),
            Column("sender", ("sender", "from", "author"), _text),
            Column("text", ("text", "message", "body"), _text),
            Column("sent_at", ("datetime", "sent_at", "created_at"), read_timestamp),
        ),
        {},
    ),
}  # fmt: skip
