"""What simulators and samples send occurs in the corpus of recorded and documented requests, `tests/reality`."""

import re
from pathlib import Path

import pytest

from boathook.providers import RECIPES
from tests import reality
from tests.reality.producers import PRODUCERS, WITHOUT, Producer

PACKAGES = Path(__file__).parents[2] / "packages"
SENDERS = reality.senders()
SAMPLES = {recipe.name: recipe.sample.body for recipe in RECIPES}
_OWN_MAIL = re.compile(rb"[\w.+-]+@(?!example\.(?:com|org|net)\b)[\w-]+\.\w+")


@pytest.mark.parametrize("producer", PRODUCERS, ids=lambda producer: f"{producer.app}-{producer.sender}")
def test_a_simulator_sends_only_fields_of_the_corpus(producer: Producer):
    bodies = list(producer.bodies())
    assert bodies
    assert reality.undocumented(producer.sender, bodies) == producer.additions


@pytest.mark.parametrize("sender", [sender for sender in SENDERS if sender in SAMPLES])
def test_the_sample_of_a_recipe_has_only_fields_of_the_corpus(sender: str):
    assert reality.undocumented(sender, [SAMPLES[sender]]) == set()


def test_every_simulator_is_compared():
    apps = {path.parent.name.removeprefix("boathook_") for path in PACKAGES.glob("*/src/*/simulator.py")}
    assert apps - {producer.app for producer in PRODUCERS} == WITHOUT
    assert {producer.sender for producer in PRODUCERS} <= set(SENDERS)


@pytest.mark.parametrize("sender", SENDERS)
def test_the_source_of_each_format_is_named(sender: str):
    readme = (reality.ROOT / sender / "README.md").read_text()
    assert "https://" in readme
    assert re.search(r"\b20\d\d-\d\d-\d\d\b", readme), "say when it was read"
    assert {name for name in reality.examples(sender) if f"`{name}`" not in readme} == set()


@pytest.mark.parametrize("sender", SENDERS)
def test_no_example_has_personal_details(sender: str):
    for name, body in reality.examples(sender).items():
        assert not _OWN_MAIL.findall(body), f"{name}: use an address at example.com"


@pytest.mark.parametrize(
    "path", sorted(PACKAGES.glob("*/src/*/examples/*")), ids=lambda path: f"{path.parts[-3]}-{path.name}"
)
def test_what_an_app_packages_is_a_copy_of_the_corpus(path: Path):
    copies = [file.read_bytes() for file in reality.ROOT.glob(f"*/{path.name}")]
    assert path.read_bytes() in copies, "copy the file from tests/reality"


def test_an_invented_field_is_noticed():
    """The guard's own mutant."""
    body = b'{"event": "car_update", "payload": "{\\"id\\"=>1, \\"wings\\"=>[1, 2]}", "version": 2}'
    assert reality.undocumented("rentprog", [body]) == {"payload.wings", "version"}


@pytest.mark.parametrize(
    ("body", "paths"),
    [
        (b'{"a": {"b": [{"c": 1}, {"d": null}]}}', {"a", "a.b", "a.b.c", "a.b.d"}),
        (b'{"a": "{\\"b\\"=>[nil, 1], \\"c\\"=>nil}"}', {"a", "a.b", "a.c"}),
        (b'{"a": "{\\"b\\": 1}"}', {"a", "a.b"}),
        (b"name=x&payment=%7B%22sum%22%3A1%7D", {"name", "payment", "payment.sum"}),
        (b'{"a": "{not a hash"}', {"a"}),
        (b"{", set()),
    ],
)
def test_fields_are_read_from_json_forms_and_texts_within(body: bytes, paths: set[str]):
    assert reality.field_paths(body) == paths
