"""Calls methods of the official Python client, controlled by the test over standard input.

One argument: the server's address. Prints the names of all methods, then one JSON line for each line that it reads.
"""

import inspect
import json
import sys
import typing
from collections.abc import Callable, Iterator
from typing import Any

from pydantic import BaseModel, TypeAdapter
from svix.api import Svix, SvixOptions
from svix.exceptions import HttpError, HTTPValidationError


def methods(resource: Any, prefix: str = "") -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield all methods of a client and of the resources that it holds."""
    for name, member in inspect.getmembers(type(resource)):
        if name.startswith("_"):
            continue
        if isinstance(member, property):
            yield from methods(getattr(resource, name), f"{prefix}{name}.")
        elif inspect.isfunction(member):
            yield prefix + name.rstrip("_"), getattr(resource, name)


def arguments(call: Callable[..., Any], task: dict[str, Any]) -> Iterator[Any]:
    types = typing.get_type_hints(call)
    path = iter(task["path"])
    for name in inspect.signature(call).parameters:
        if types[name] is str:
            yield next(path)
        elif name == "options":
            yield TypeAdapter(types[name]).validate_python({snake(key): one for key, one in task["options"].items()})
        else:
            yield types[name].model_validate(task["body"])


def snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)


def answer(task: dict[str, Any]) -> dict[str, Any]:
    call = dict(methods(Svix(task["token"], SvixOptions(server_url=sys.argv[1]))))[task["method"]]
    try:
        value = call(*arguments(call, task))
    except HttpError as error:
        return {"status": error.status_code, "error": {"code": error.code, "detail": error.detail}}
    except HTTPValidationError as error:
        return {"status": error.status_code, "error": {"detail": error.to_dict()["detail"]}}
    except Exception as error:  # noqa: BLE001 - whatever the client cannot do is for the test to judge
        return {"failure": f"{type(error).__name__}: {error}"}
    if isinstance(value, BaseModel):
        return {"value": value.model_dump(mode="json", by_alias=True, exclude_unset=True)}
    return {"value": value}


def show(value: Any) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def main() -> None:
    show([name for name, _ in methods(Svix("", SvixOptions(server_url=sys.argv[1])))])
    for line in sys.stdin:
        show(answer(json.loads(line)))


main()
