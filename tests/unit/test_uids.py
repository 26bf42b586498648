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


def test_an_id_of_svix_is_a_reference_and_no_uid():
    name = "app_1srOrx2ZWZBpBUvZwXKQmoEYga2"
    assert parse_reference(ids.APPLICATION, name) == (None, name)
    for other in (name[:-1], f"{name}a", name.replace("2", "-"), name.replace("app_", "ep_").replace("2", "é")):
        assert parse_reference(ids.APPLICATION, other) is None
    with pytest.raises(ValueError, match="must not start with app_"):
        check_uid(name, ids.APPLICATION)


@pytest.mark.parametrize("name", ["...", ".a", "a.", "a..b"])
def test_other_names_with_dots_are_allowed(name: str):
    assert check_uid(name, ids.APPLICATION) == check_type(name) == name
