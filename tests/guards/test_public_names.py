"""The public API is small, sorted, documented, and exactly what the root package shows."""

import inspect
from types import ModuleType

import pytest

import boathook

MAX = 16


def shown() -> list[str]:
    for name in boathook.__all__:
        getattr(boathook, name)  # which imports it
    return sorted(
        name for name, value in vars(boathook).items() if not name.startswith("_") and not isinstance(value, ModuleType)
    )


def test_all_is_sorted_and_small():
    assert boathook.__all__ == sorted(boathook.__all__)
    assert len(boathook.__all__) <= MAX


def test_all_equals_the_names_of_the_package():
    assert shown() == list(boathook.__all__)


def test_a_name_that_is_not_public_is_not_found():
    with pytest.raises(AttributeError, match="no attribute 'Delivery'"):
        boathook.Delivery  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(ImportError):
        exec("from boathook import Delivery")
    assert dir(boathook) == boathook.__all__


def test_every_public_name_has_a_docstring():
    silent = [name for name in boathook.__all__ if not inspect.getdoc(getattr(boathook, name))]
    assert silent == []


def test_every_public_method_has_a_docstring():
    classes = [value for name in boathook.__all__ if inspect.isclass(value := getattr(boathook, name))]
    silent = [
        f"{cls.__name__}.{name}"
        for cls in classes
        for name, member in vars(cls).items()
        if inspect.isfunction(member) and not name.startswith("_") and not inspect.getdoc(member)
    ]
    assert silent == []
