"""Errors: the tree in the docstring of their module."""

import inspect

from boathook.domain import errors


def test_the_tree_in_the_docstring_has_every_class_below_its_base():
    drawn: list[tuple[str, str]] = []
    above = ["BoathookError"]
    for line in (errors.__doc__ or "").splitlines():
        branch = line.find("── ")
        if branch > 0:
            depth, name = (branch - 1) // 4 + 1, line[branch + 3 :].split()[0]
            above[depth:] = [name]
            drawn.append((name, above[depth - 1]))
    defined = [
        (name, one.__bases__[0].__name__)
        for name, one in inspect.getmembers(errors, inspect.isclass)
        if one.__module__ == errors.__name__ and one is not errors.BoathookError
    ]
    assert sorted(drawn) == sorted(defined)
