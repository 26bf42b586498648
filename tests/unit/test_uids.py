"""Names of objects that are part of a path."""

import pytest

from boathook.domain import ids
from boathook.domain.endpoints import check_type, check_uid, parse_reference


@pytest.mark.parametrize("name", [".", ".."])
def test_a_name_that_clients_resolve_in_a_path_is_refused(name: str):
    for check in (
        check_type,
        lambda name: check_uid(name, ids.APPLICATION),
        lambda name: check_uid(name, ids.ENDPOINT),
    ):
        with pytest.raises(ValueError, match="no path can end in"):
            check(name)
    assert parse_reference(ids.APPLICATION, name) is None


@pytest.mark.parametrize("name", ["...", ".a", "a.", "a..b"])
def test_other_names_with_dots_are_allowed(name: str):
    assert check_uid(name, ids.APPLICATION) == check_type(name) == name
