"""The lock files hold every dependency, with hashes, and name no place to fetch them from."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCKS = [ROOT / f"requirements/{name}.lock" for name in ("run", "dev", "release", "uv")]


def pins(lock: Path) -> dict[str, list[Requirement]]:
    """Return the pinned requirements of *lock* by name; one name may be pinned once per Python version."""
    found: dict[str, list[Requirement]] = {}
    for line in lock.read_text().splitlines():
        if line and not line.startswith((" ", "#")):
            pin = Requirement(line.removesuffix("\\").strip())
            found.setdefault(pin.name, []).append(pin)
    return found


def wanted(lock: Path) -> list[Requirement]:
    groups = PROJECT["dependency-groups"]
    if lock.name == "uv.lock":
        return [wish for name in groups["dev"] if (wish := Requirement(name)).name == "uv"]
    if lock.name == "release.lock":
        return [Requirement(name) for name in groups["release"]]
    extras = PROJECT["project"]["optional-dependencies"]
    names = [*PROJECT["project"]["dependencies"], *extras["embedded"], *groups["build"]]
    if lock.name == "dev.lock":
        names += groups["dev"] + [name for extra in extras.values() for name in extra]
    return [wish for name in names if (wish := Requirement(name)).name != "boathook"]


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
class TestEachLock:
    def test_satisfies_the_project(self, lock):
        locked = pins(lock)
        for wish in wanted(lock):
            versions = [str(pin.specifier).removeprefix("==") for pin in locked.get(wish.name, [])]
            assert versions, f"{wish.name} is missing; run make lock"
            assert all(version in wish.specifier for version in versions), f"{wish}: locked {versions}; run make lock"

    def test_has_a_hash_for_every_pin(self, lock):
        entries = re.split(r"\n(?=\S)", lock.read_text().strip())
        assert [entry for entry in entries if "--hash=sha256:" not in entry] == []

    def test_names_no_host(self, lock):
        assert re.findall(r"\S*://\S*|--\S*index\S*", lock.read_text()) == []


@pytest.mark.parametrize("lock", [lock for lock in LOCKS if lock.name != "dev.lock"], ids=lambda lock: lock.name)
def test_the_same_versions_are_tested(lock):
    """Locks for fewer packages may have narrower markers."""
    tested = pins(ROOT / "requirements/dev.lock")
    for name, chosen in pins(lock).items():
        if lock.name == "release.lock" and name not in tested:
            continue
        assert {str(pin.specifier) for pin in chosen} <= {str(pin.specifier) for pin in tested[name]}


def test_no_package_makes_each_start_slow():
    """With jsonschema's checkers of formats, `import jsonschema` compiles a grammar for more than a second."""
    assert "rfc3987-syntax" not in pins(ROOT / "requirements/dev.lock")
