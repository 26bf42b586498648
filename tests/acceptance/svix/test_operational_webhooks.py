"""Operational webhooks about endpoints and attempts are delivered like all messages."""

from typing import Any

import pytest

from tests.acceptance.svix.receiver import Answer
from tests.acceptance.svix.server import Api, Application
from tests.support import until

BROKEN = Answer(500, b"broken")


class TestOperationalWebhooks:
    @pytest.fixture
    def organization(self, server):
        """A separate organization, so that endpoints of other tests do not matter."""
        api = Api(server.base, server.make_key("operational"))
        yield api
        api.close()

    @pytest.mark.extended("starts several servers of its own")
    def test_report_endpoint_changes_and_failing_attempts(self, organization, receiver):
        told = receiver.mailbox()
        watcher = organization.post("/operational-webhook/endpoint", {"url": told.url}, expect=201)
        secret = organization.get(f"/operational-webhook/endpoint/{watcher['id']}/secret")["key"]
        app = Application(organization, uid="watched")
        box = receiver.mailbox(BROKEN)
        endpoint = app.endpoint(box, uid="one", retrySchedule=[0.05, 0.05, 0.05, 1, 1])
        message = app.send(eventId="order-1")

        def names() -> list[str]:
            return [request.json["type"] for request in list(told.received)]

        until(lambda: "message.attempt.exhausted" in names())
        organization.patch(f"{app.path}/endpoint/one", {"description": "watched"})
        until(lambda: "endpoint.updated" in names())
        organization.post(f"{app.path}/endpoint/one/secret/rotate", {}, expect=200)
        until(lambda: names().count("endpoint.updated") == 2)
        recovering = receiver.mailbox(*[BROKEN] * 4, Answer())
        organization.delete(f"{app.path}/endpoint/one")
        app.endpoint(recovering, retrySchedule=[0.05] * 5)
        app.send()
        until(lambda: {"endpoint.deleted", "message.attempt.recovered"} <= set(names()))
        gone = receiver.mailbox(Answer(410))
        app.endpoint(gone, retrySchedule=[0.05])
        app.send()
        until(lambda: "endpoint.disabled" in names())
        for request in told.received:
            request.check(secret)
        by_type: dict[str, Any] = {}
        for request in told.received:
            by_type.setdefault(request.json["type"], request.json["data"])
        assert by_type["endpoint.created"] == {
            "appId": app.id,
            "appUid": "watched",
            "endpointId": endpoint["id"],
            "endpointUid": "one",
        }
        failing, exhausted = by_type["message.attempt.failing"], by_type["message.attempt.exhausted"]
        for data in (failing, exhausted):
            assert (data["appId"], data["endpointId"], data["msgId"]) == (app.id, endpoint["id"], message)
            assert data["msgEventId"] == "order-1"
            assert data["lastAttempt"]["responseStatusCode"] == 500
            assert data["lastAttempt"]["id"].startswith("atmpt_")
        assert names().index("message.attempt.failing") < names().index("message.attempt.exhausted")
        assert by_type["endpoint.disabled"]["failSince"]
