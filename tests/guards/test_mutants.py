"""The script that changes the code to see which changes no test notices."""

from pathlib import Path

import pytest

from scripts.chosen_mutants import CHOSEN
from scripts.mutants import ACCEPTED, TARGETS, Mutant, Sandbox, _all_of, mutants_of, place_of, sample, survivors

MODULE = '''
"""A folder that is made durable."""


def add(names: list[str], name: str, synced: list[str], limit: int = 3) -> bool:
    """Add a name."""
    if len(names) >= limit or not name:
        raise ValueError("full")
    names.append(name)
    synced.append(name)
    return True
'''
CARELESS = """
from thing.folder import add

def test_a_name_is_added():
    names = []
    assert add(names, "a", [])
    assert names == ["a"]
"""
FOREIGN = "def test_nothing():\n    pass\n"


def test_each_kind_of_change_is_made():
    assert {one.change for one in mutants_of("folder.py", MODULE)} == {
        "add: 3 to 4",
        "add: not `len(names) >= limit or not name`",
        "add: swap Or in `len(names) >= limit or not name`",
        "add: swap GtE in `len(names) >= limit`",
        "add: delete `raise ValueError('full')`",
        "add: delete `names.append(name)`",
        "add: delete `synced.append(name)`",
        "add: True to False",
    }


def test_every_change_differs_from_the_code_in_one_place():
    plain = mutants_of("folder.py", MODULE)
    assert len({one.source for one in plain}) == len(plain)


def test_a_sample_is_stable_when_code_is_added():
    earlier, later = (
        mutants_of("folder.py", MODULE),
        mutants_of("folder.py", MODULE + "\n\ndef new() -> int:\n    return 7\n"),
    )
    names = {one.name for one in sample(later, 5, 0)} - {one.name for one in later if "new" in one.name}
    assert names <= {one.name for one in sample(earlier, 5, 0)}


@pytest.mark.extended("runs pytest on copies of the code; what changes a line is tested by itself")
def test_each_target_has_changes_and_tests():
    everything = {one.name for target in TARGETS.values() for one in _all_of(target)}
    assert all((Path(__file__).parents[2] / test).is_file() for target in TARGETS.values() for test in target.tests)
    assert set(ACCEPTED) <= everything, "the code of an accepted change is gone"


def test_the_code_of_each_chosen_change_is_there_once():
    root = Path(__file__).parents[2]
    for one in [one for area in CHOSEN.values() for one in area]:
        folder, module = place_of(one.module)
        source = (folder / module).read_text(encoding="utf-8")
        assert one.apply(source) != source
        for test in one.tests:
            assert not test.startswith("tests/") or (root / test).is_file(), test


def test_a_chosen_change_whose_code_is_gone_is_an_error():
    one = CHOSEN["spool"][0]
    with pytest.raises(ValueError, match=f"{one.module} has this 0 times"):
        one.apply("")


def sandbox(folder: Path, test: str) -> Sandbox:
    source = folder / "src/thing"
    source.mkdir(parents=True)
    (source / "__init__.py").touch()
    (source / "folder.py").write_text(MODULE)
    (folder / "test_thing.py").write_text(test)
    return Sandbox(source, folder / "copy", ["test_thing.py"], root=folder)


def alive(folder: Path, test: str) -> list[str]:
    wanted = ("delete `names.append(name)`", "delete `synced.append(name)`")
    mutants: list[Mutant] = [one for one in mutants_of("folder.py", MODULE) if one.change.endswith(wanted)]
    return [one.change for one in survivors([sandbox(folder, test)], mutants)]


@pytest.mark.extended("runs pytest on copies of the code; what changes a line is tested by itself")
def test_a_sync_that_no_test_misses_is_reported(tmp_path: Path):
    assert alive(tmp_path, CARELESS) == ["add: delete `synced.append(name)`"]


@pytest.mark.extended("runs pytest on copies of the code; what changes a line is tested by itself")
def test_tests_that_do_not_import_the_copy_are_refused(tmp_path: Path):
    with pytest.raises(RuntimeError, match=r"do not import folder\.py from the copy"):
        alive(tmp_path, FOREIGN)
