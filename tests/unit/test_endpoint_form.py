"""The parts of an endpoint's page that need no database: the tree of event types, and the code that verifies messages."""

import time
from typing import Any

import pytest
from standardwebhooks import WebhookVerificationError

from boathook.db.event_types import EventType
from boathook.domain.signing import STANDARD_PREFIX, encode_base64, sign_standard
from boathook_console.shared.endpoint_forms import MAX_LEVELS, TypeNode, build_tree, tree_values, without_covered
from boathook_console.shared.verification_examples import VERIFICATION_EXAMPLES

SECRET = STANDARD_PREFIX + encode_base64(b"a key of thirty-two bytes, at le")


def tree_of(*names: str) -> tuple[TypeNode, ...]:
    return build_tree(EventType(organization="default", name=name, description=f"about {name}") for name in names)


@pytest.mark.parametrize(
    ("names", "values"),
    [
        ((), []),
        (("ping",), ["ping"]),
        (("invoice.paid",), ["invoice.paid"]),
        (("invoice.sent", "invoice.paid"), ["invoice.*", "invoice.paid", "invoice.sent"]),
        (("a.b.c", "a.b.d", "a.e"), ["a.*", "a.b.*", "a.b.c", "a.b.d", "a.e"]),
        (("a.b.c", "a.d"), ["a.*", "a.b.c", "a.d"]),
        (("com.acme.paid", "com.acme.sent"), ["com.acme.*", "com.acme.paid", "com.acme.sent"]),
        (("a", "a.b", "a.c", "ab.c"), ["a", "a.*", "a.b", "a.c", "ab.c"]),
    ],
)
def test_types_with_a_common_prefix_are_a_group(names: tuple[str, ...], values: list[str]):
    assert list(tree_values(tree_of(*names))) == values


def test_the_depth_of_a_tree_is_limited():
    names = [".".join(["a"] * parts) for parts in range(1, 129)]
    values = list(tree_values(tree_of(*names)))
    assert len([value for value in values if value.endswith(".*")]) == MAX_LEVELS
    assert [value for value in values if not value.endswith(".*")] == names


def test_a_group_is_found_by_the_words_of_its_types_and_counts_them():
    (group,) = tree_of("invoice.paid", "invoice.sent")
    assert "about invoice.sent" in group.words
    assert group.size == 2


@pytest.mark.parametrize(
    ("selected", "kept"),
    [
        ([], []),
        (["invoice.paid", "user.made"], ["invoice.paid", "user.made"]),
        (["invoice.*", "invoice.paid", "user.made"], ["invoice.*", "user.made"]),
        (["a.*", "a.b.*", "a.b.c"], ["a.*"]),
        (["invoice.*", "invoices.sent"], ["invoice.*", "invoices.sent"]),
    ],
)
def test_a_selected_group_replaces_its_members(selected: list[str], kept: list[str]):
    assert without_covered(selected) == kept


def test_the_example_in_python_accepts_a_message_and_refuses_a_changed_one(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WEBHOOK_SECRET", SECRET)
    (example,) = [one for one in VERIFICATION_EXAMPLES if one.language == "Python"]
    namespace: dict[str, Any] = {}
    exec(compile(example.code, "example", "exec"), namespace)
    now = int(time.time())
    headers = {
        "webhook-id": "msg_1",
        "webhook-timestamp": str(now),
        "webhook-signature": sign_standard([SECRET], "msg_1", now, b'{"a": 1}'),
    }
    assert namespace["receive"](b'{"a": 1}', headers) == {"a": 1}
    with pytest.raises(WebhookVerificationError):
        namespace["receive"](b'{"a": 2}', headers)
