"""Delivery to receivers and its attempts in the API, end to end."""

import base64
import json
import socket
import time
from datetime import UTC, datetime, timedelta

import pytest
import standardwebhooks
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from tests.acceptance.conftest import free_port
from tests.acceptance.svix.receiver import Answer
from tests.acceptance.svix.server import CANCELED, FAIL, PENDING, SENDING, SUCCESS
from tests.support import until

BROKEN = Answer(500, b"broken")


class TestResults:
    def test_a_delivered_message_has_one_attempt_with_the_response(self, app, receiver):
        box = receiver.mailbox(Answer(201, b'{"done":true}', delay_s=0.05))
        endpoint = app.endpoint(box)
        payload = {"amount": 12, "note": "Ünïcode \u2028 </script>", "deep": {"list": [1, 2.5, None, True]}}
        message = app.send(payload, "invoice.paid")
        app.wait_status(message, endpoint, SUCCESS)
        [request] = box.received
        assert request.json == payload
        assert request.message == message
        assert request.header("content-type") == "application/json"
        assert request.header("user-agent").startswith("boathook")
        request.check(app.secret(endpoint))
        [attempt] = app.attempts(endpoint)
        assert attempt | {"id": "", "timestamp": "", "responseDurationMs": 0} == attempt | {
            "id": "",
            "timestamp": "",
            "url": box.url,
            "response": '{"done":true}',
            "responseStatusCode": 201,
            "responseDurationMs": 0,
            "status": SUCCESS,
            "statusText": "success",
            "triggerType": 0,
            "msgId": message,
            "endpointId": endpoint["id"],
        }
        assert 50 <= attempt["responseDurationMs"] < 15_000

    @pytest.mark.parametrize("status", [403, 500, 302])
    def test_a_refused_message_is_retried_by_its_schedule(self, app, receiver, status):
        box = receiver.mailbox(Answer(status, b"no"))
        endpoint = app.endpoint(box, retrySchedule=[0.1, 0.2])
        message = app.send()
        app.wait_status(message, endpoint, FAIL)
        assert [row["responseStatusCode"] for row in app.attempts(endpoint)] == [status] * 3
        assert box.messages() == [message] * 3
        first, second, third = (request.at for request in box.received)
        assert second - first > 0.08
        assert third - second > 0.16

    def test_an_empty_schedule_means_one_attempt(self, app, receiver):
        box = receiver.mailbox(BROKEN)
        endpoint = app.endpoint(box, retrySchedule=[])
        message = app.send()
        app.wait_status(message, endpoint, FAIL)
        assert len(app.attempts(endpoint)) == 1

    def test_a_refused_connection_is_an_attempt_with_code_zero(self, app):
        endpoint = app.endpoint(f"http://127.0.0.1:{free_port()}/", retrySchedule=[])
        message = app.send()
        app.wait_status(message, endpoint, FAIL)
        [attempt] = app.attempts(endpoint, status_code_class=0)
        assert attempt["responseStatusCode"] == 0
        assert attempt["statusText"] == "fail"
        assert "connect" in attempt["response"].lower()

    def test_an_unresponsive_receiver_times_out(self, app):
        with socket.create_server(("127.0.0.1", 0)) as silent:
            url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
            endpoint = app.endpoint(url, retrySchedule=[], timeoutSeconds=1)
            message = app.send()
            app.wait_status(message, endpoint, FAIL)
            [attempt] = app.attempts(endpoint)
        assert attempt["responseStatusCode"] == 0
        assert 900 <= attempt["responseDurationMs"] < 15_000

    def test_while_attempts_are_left_the_message_is_sending(self, app, receiver):
        box = receiver.mailbox(BROKEN)
        endpoint = app.endpoint(box, retrySchedule=[60])
        message = app.send()
        box.wait()
        app.wait_status(message, endpoint, SENDING)
        row = app.api.get(f"{app.path}/msg/{message}/endpoint")["data"][0]
        assert row["nextAttempt"] is not None
        assert [
            one["id"] for one in app.api.get(f"{app.path}/endpoint/{endpoint['id']}/msg", status=SENDING)["data"]
        ] == [message]
        assert app.api.get(f"{app.path}/endpoint/{endpoint['id']}/msg", status=SUCCESS)["data"] == []
        assert app.api.get(f"{app.path}/endpoint/{endpoint['id']}/msg", status=FAIL)["data"] == []

    def test_a_success_is_not_also_sending_or_failed(self, app, receiver):
        box = receiver.mailbox(BROKEN, Answer())
        endpoint = app.endpoint(box)
        message = app.send()
        app.wait_status(message, endpoint, SUCCESS)
        listed = {
            status: [
                row["id"] for row in app.api.get(f"{app.path}/endpoint/{endpoint['id']}/msg", status=status)["data"]
            ]
            for status in (SUCCESS, PENDING, FAIL, SENDING)
        }
        assert listed == {SUCCESS: [message], PENDING: [], FAIL: [], SENDING: []}
        assert [row["status"] for row in app.attempts(endpoint)] == [SUCCESS, FAIL]

    def test_of_three_endpoints_one_fails_until_it_is_repaired(self, app, receiver):
        good, other, bad = receiver.mailbox(), receiver.mailbox(), receiver.mailbox(BROKEN)
        endpoints = [app.endpoint(box) for box in (good, other)]
        failing = app.endpoint(bad, retrySchedule=[0.2, 0.5, 0.5, 1, 1])
        message = app.send()
        for endpoint in endpoints:
            app.wait_status(message, endpoint, SUCCESS)
        bad.wait(2)
        assert app.status(message, failing) == SENDING
        bad.respond_with(Answer())
        app.wait_status(message, failing, SUCCESS)
        assert good.messages() == other.messages() == [message]
        tried = app.attempts(failing)
        assert tried[0]["status"] == SUCCESS
        assert {row["status"] for row in tried[1:]} == {FAIL}
        bad.received[-1].check(app.secret(failing))
        destinations = app.api.pages(f"{app.path}/msg/{message}/endpoint", limit=1)
        assert [row["id"] for row in destinations] == sorted(one["id"] for one in [*endpoints, failing])

    def test_a_redirect_is_not_followed(self, app, receiver):
        target = receiver.mailbox()
        box = receiver.mailbox(Answer(308, headers=(("Location", target.url),)))
        endpoint = app.endpoint(box, retrySchedule=[])
        message = app.send()
        app.wait_status(message, endpoint, FAIL)
        assert app.attempts(endpoint)[0]["responseStatusCode"] == 308
        assert target.received == []

    def test_a_410_disables_the_endpoint_at_once(self, app, receiver):
        box = receiver.mailbox(Answer(410))
        endpoint = app.endpoint(box)
        app.send()
        until(lambda: app.api.get(f"{app.path}/endpoint/{endpoint['id']}")["disabled"])
        assert len(box.received) == 1

    @pytest.mark.extended("waits for intervals and deadlines of the product")
    def test_retry_after_of_a_receiver_is_respected(self, app, receiver):
        box = receiver.mailbox(Answer(503, headers=(("Retry-After", "1"),)), Answer())
        endpoint = app.endpoint(box, retrySchedule=[0.6])
        message = app.send()
        app.wait_status(message, endpoint, SUCCESS)
        first, second = (request.at for request in box.received)
        assert second - first >= 0.95

    def test_a_raw_payload_is_sent_as_it_is(self, app, receiver):
        raw = ' {"b" : 1,\n "a":2 }'
        box = receiver.mailbox()
        endpoint = app.endpoint(box)
        message = app.send({"ignored": True}, transformationsParams={"rawPayload": raw})
        box.wait()
        assert box.received[0].body == raw.encode()
        box.received[0].check(app.secret(endpoint))
        app.wait_status(message, endpoint, SUCCESS)

    def test_a_raw_payload_has_the_content_type_it_was_given(self, app, receiver):
        box = receiver.mailbox()
        app.endpoint(box)
        params = {"rawPayload": "a,b\n1,2\n", "headers": {"content-type": "text/csv; charset=utf-8"}}
        app.send(transformationsParams=params)
        (request,) = box.wait()
        assert (request.header("content-type"), request.body) == ("text/csv; charset=utf-8", b"a,b\n1,2\n")

    def test_user_info_in_the_address_becomes_basic_authorization(self, app, receiver):
        box = receiver.mailbox()
        app.endpoint(box.url.replace("http://", "http://shop:open@"))
        app.send()
        assert box.wait()[0].header("authorization") == "Basic " + base64.b64encode(b"shop:open").decode()


class TestRouting:
    def test_by_event_type(self, app, api, receiver):
        for name in ("delivery.paid", "delivery.voided"):
            if api.http.get(f"/event-type/{name}").status_code == 404:
                api.post("/event-type", {"name": name, "description": name}, expect=201)
        everything, paid, voided, pattern = (receiver.mailbox() for _ in range(4))
        app.endpoint(everything)
        app.endpoint(paid, eventTypes=["delivery.paid"])
        app.endpoint(voided, filterTypes=["delivery.voided"])
        app.endpoint(pattern, eventTypes=["delivery.*"])
        first = app.send(kind="delivery.paid")
        second = app.send(kind="delivery.voided")
        third = app.send(kind="other")
        everything.wait(3)
        pattern.wait(2)
        paid.wait(1)
        voided.wait(1)
        assert {tuple(sorted(box.messages())) for box in (everything,)} == {tuple(sorted([first, second, third]))}
        assert paid.messages() == [first]
        assert voided.messages() == [second]
        assert sorted(pattern.messages()) == sorted([first, second])

    def test_by_channel(self, app, receiver):
        everything, blue, red = (receiver.mailbox() for _ in range(3))
        app.endpoint(everything)
        app.endpoint(blue, channels=["blue", "green"])
        app.endpoint(red, channels=["red"])
        coloured = app.send(channels=["blue", "white"])
        plain = app.send()
        everything.wait(2)
        blue.wait(1)
        app_messages = sorted(everything.messages())
        assert app_messages == sorted([coloured, plain])
        assert blue.messages() == [coloured]
        assert red.received == []

    def test_disabled_and_deleted_endpoints_get_nothing(self, app, receiver):
        kept, disabled, deleted = (receiver.mailbox() for _ in range(3))
        app.endpoint(kept)
        app.endpoint(disabled, disabled=True)
        gone = app.endpoint(deleted)
        app.api.delete(f"{app.path}/endpoint/{gone['id']}")
        message = app.send()
        kept.wait()
        assert [row["id"] for row in app.api.get(f"{app.path}/msg/{message}/endpoint")["data"]] != []
        assert disabled.received == deleted.received == []
        assert app.status(message, gone) is None

    @pytest.mark.extended("waits for intervals and deadlines of the product")
    def test_a_deleted_endpoint_is_not_retried(self, app, receiver):
        box = receiver.mailbox(BROKEN)
        endpoint = app.endpoint(box, retrySchedule=[1, 1])
        message = app.send()
        box.wait()
        app.api.delete(f"{app.path}/endpoint/{endpoint['id']}")
        app.wait_status(message, endpoint, FAIL)
        assert len(box.received) == 1

    @pytest.mark.extended("waits for intervals and deadlines of the product")
    def test_a_deleted_application_is_sent_nothing_more(self, server, receiver):
        app = server.application()
        box = receiver.mailbox(BROKEN)
        app.endpoint(box, retrySchedule=[0.5])
        app.send()
        box.wait()
        app.api.delete(app.path)
        app.api.post(f"{app.path}/msg", {"eventType": "x", "payload": {}}, expect=404)
        other = server.application()
        later = receiver.mailbox(BROKEN)
        other.endpoint(later, retrySchedule=[0.5, 0.5])
        other.send()
        later.wait(3)
        assert len(box.received) == 1

    def test_messages_wait_while_their_endpoint_is_disabled(self, app, receiver):
        box = receiver.mailbox(BROKEN, Answer())
        endpoint = app.endpoint(box, retrySchedule=[0.3, 0.3])
        message = app.send()
        box.wait()
        app.api.patch(f"{app.path}/endpoint/{endpoint['id']}", {"disabled": True})
        control = receiver.mailbox(BROKEN)
        app.endpoint(control, retrySchedule=[0.3, 0.3])
        app.send()
        control.wait(3)
        waited = len(box.received)
        app.api.patch(f"{app.path}/endpoint/{endpoint['id']}", {"disabled": False})
        app.wait_status(message, endpoint, SUCCESS)
        assert waited <= 2, "an attempt under way when it was disabled may end; no other begins"

    def test_enabling_with_backlog_cancel_cancels_pending_messages(self, app, receiver):
        box = receiver.mailbox(BROKEN, Answer())
        endpoint = app.endpoint(box, retrySchedule=[3])
        message = app.send()
        box.wait()
        path = f"{app.path}/endpoint/{endpoint['id']}"
        app.api.patch(path, {"disabled": True})
        app.api.patch(path, {"disabled": False, "backlog": "cancel"})
        app.wait_status(message, endpoint, CANCELED)
        [row] = app.api.get(f"{app.path}/msg/{message}/endpoint")["data"]
        assert row["status"] == SUCCESS, "clients that do not ask for the fifth state read success"

    def test_the_example_ping_has_a_success_payload(self, app, receiver):
        box = receiver.mailbox()
        endpoint = app.endpoint(box)
        app.api.post(f"{app.path}/endpoint/{endpoint['id']}/send-example", {"eventType": "svix.ping"}, expect=200)
        assert box.wait()[0].json == {"success": True}

    def test_a_scheduled_message_stays_pending_until_due(self, app, receiver):
        box = receiver.mailbox()
        endpoint = app.endpoint(box)
        at = (datetime.now(UTC) + timedelta(minutes=5)).isoformat()
        message = app.send(deliverAt=at)
        now = app.send()
        app.wait_status(now, endpoint, SUCCESS)
        assert app.status(message, endpoint) == PENDING
        assert box.messages() == [now]


class TestSignatures:
    @staticmethod
    def ed25519() -> tuple[str, str]:
        key = Ed25519PrivateKey.generate()
        seed = key.private_bytes(Encoding.Raw, PrivateFormat.Raw, NoEncryption())
        public = key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        return f"whsk_{base64.b64encode(seed + public).decode()}", f"whpk_{base64.b64encode(public).decode()}"

    def rotate(self, app, endpoint, **fields) -> str:
        app.api.http.post(f"{app.path}/endpoint/{endpoint['id']}/secret/rotate", json=fields).raise_for_status()
        return app.secret(endpoint)

    def test_every_live_key_signs_and_the_current_one_first(self, app, receiver):
        box = receiver.mailbox()
        endpoint = app.endpoint(box)
        first = app.secret(endpoint)
        second = self.rotate(app, endpoint)
        third = self.rotate(app, endpoint)
        app.send()
        [request] = box.wait()
        assert len(request.signatures) == 3
        assert [request.is_signed_by(key) for key in (first, second, third)] == [True] * 3
        alone = {"webhook-signature": request.signatures[0]}
        headers = {name.lower(): value for name, value in request.headers} | alone
        standardwebhooks.Webhook(third).verify(request.body, headers)

    def test_a_key_without_grace_signs_no_more(self, app, receiver):
        box = receiver.mailbox()
        endpoint = app.endpoint(box)
        first = app.secret(endpoint)
        second = self.rotate(app, endpoint, gracePeriodSeconds=0)
        app.send()
        [request] = box.wait()
        assert len(request.signatures) == 1
        assert not request.is_signed_by(first)
        request.check(second)

    def test_two_kinds_of_keys_sign_side_by_side(self, app, receiver):
        box = receiver.mailbox()
        private, public = self.ed25519()
        endpoint = app.endpoint(box)
        old = app.secret(endpoint)
        assert self.rotate(app, endpoint, key=private) == public
        app.send()
        [request] = box.wait()
        assert [signature.split(",")[0] for signature in request.signatures] == ["v1a", "v1"]
        assert request.is_signed_by(public)
        assert request.is_signed_by(old)

    def test_a_key_is_never_shown_in_private_form(self, app):
        private, public = self.ed25519()
        endpoint = app.endpoint("http://127.0.0.1:61999/", secret=private, disabled=True)
        assert app.secret(endpoint) == public
        assert private.removeprefix("whsk_") not in json.dumps(endpoint)

    def test_each_attempt_has_a_new_signature_and_the_same_id(self, app, receiver):
        box = receiver.mailbox(BROKEN, Answer())
        endpoint = app.endpoint(box, retrySchedule=[1.2])
        app.send()
        first, second = box.wait(2)
        assert first.message == second.message
        assert first.body == second.body
        assert int(second.header("webhook-timestamp")) > int(first.header("webhook-timestamp"))
        for request in (first, second):
            request.check(app.secret(endpoint))
            assert abs(int(request.header("webhook-timestamp")) - time.time()) < 300

    def test_an_altered_body_is_not_signed(self, app, receiver):
        """The mutant: the checks reject an altered body."""
        box = receiver.mailbox()
        endpoint = app.endpoint(box)
        app.send()
        [request] = box.wait()
        altered = type(request)(request.path, request.headers, request.body + b" ", request.at)
        assert request.is_signed_by(app.secret(endpoint))
        assert not altered.is_signed_by(app.secret(endpoint))


class TestHeaders:
    def test_keep_their_case_and_change_at_once(self, app, receiver):
        box = receiver.mailbox()
        endpoint = app.endpoint(box, headers={"X-ShOp": "one", "Authorization": "Bearer abc"})
        app.send()
        [request] = box.wait()
        assert ("X-ShOp", "one") in request.headers
        assert request.header("authorization") == "Bearer abc"
        app.api.put(f"{app.path}/endpoint/{endpoint['id']}/headers", {"headers": {"X-Other": "2"}}, expect=204)
        app.send()
        request = box.wait(2)[1]
        assert request.header("x-shop") is None
        assert request.header("authorization") is None
        assert request.header("x-other") == "2"


class TestResending:
    @pytest.mark.extended("waits for intervals and deadlines of the product")
    def test_makes_one_manual_attempt_besides_the_scheduled_ones(self, app, receiver):
        box = receiver.mailbox(BROKEN, BROKEN, Answer())
        endpoint = app.endpoint(box, retrySchedule=[2])
        message = app.send()
        box.wait()
        app.wait_attempts(endpoint, 1)
        answer = app.api.post(f"{app.path}/msg/{message}/endpoint/{endpoint['id']}/resend", expect=202)
        assert answer == {}
        box.wait(2)
        app.wait_status(message, endpoint, SUCCESS)
        kinds = [(row["triggerType"], row["status"]) for row in app.attempts(endpoint)]
        assert kinds == [(0, SUCCESS), (1, FAIL), (0, FAIL)]

    def test_that_succeeds_ends_the_planned_ones(self, app, receiver):
        box = receiver.mailbox(BROKEN, Answer())
        endpoint = app.endpoint(box, retrySchedule=[1, 1])
        message = app.send()
        app.wait_attempts(endpoint, 1)
        app.api.post(f"{app.path}/msg/{message}/endpoint/{endpoint['id']}/resend", {}, expect=202)
        app.wait_status(message, endpoint, SUCCESS)
        control = receiver.mailbox(BROKEN)
        app.endpoint(control, retrySchedule=[1, 0.5], eventTypes=["control.*"])
        app.send(kind="control.sent")
        control.wait(3)
        assert [row["triggerType"] for row in app.attempts(endpoint) if row["msgId"] == message] == [1, 0]

    def test_works_for_delivered_messages(self, app, receiver):
        box = receiver.mailbox()
        endpoint = app.endpoint(box)
        message = app.send()
        app.wait_status(message, endpoint, SUCCESS)
        app.api.post(f"{app.path}/msg/{message}/endpoint/{endpoint['id']}/resend", expect=202)
        assert [request.message for request in box.wait(2)] == [message, message]
        assert box.received[0].body == box.received[1].body


class TestRates:
    @pytest.mark.extended("waits for intervals and deadlines of the product")
    def test_an_endpoint_is_sent_no_more_in_a_second_than_its_rate(self, app, receiver):
        box = receiver.mailbox()
        app.endpoint(box, throttleRate=5)
        for _ in range(14):
            app.send()
        arrived = sorted(request.at for request in box.wait(14, timeout=300))
        assert arrived[13] - arrived[0] > 1.4, "14 messages at 5 a second take more than 1.4 s"
        in_any_second = max(sum(at <= other < at + 1 for other in arrived) for at in arrived)
        assert in_any_second <= 11

    def test_without_a_rate_messages_arrive_faster(self, app, receiver):
        """The mutant: it is the rate that slows them down."""
        box = receiver.mailbox()
        app.endpoint(box)
        for _ in range(14):
            app.send()
        arrived = sorted(request.at for request in box.wait(14, timeout=300))
        in_any_second = max(sum(at <= other < at + 1 for other in arrived) for at in arrived)
        assert in_any_second > 11

    def test_an_ordered_endpoint_gets_messages_one_at_a_time(self, app, receiver):
        box = receiver.mailbox(BROKEN, Answer(delay_s=0.02))
        app.endpoint(box, orderBy="*", retrySchedule=[0.3, 0.3])
        sent = [app.send({"n": n}) for n in range(8)]
        arrived = [request.message for request in box.wait(9)]
        assert arrived == [sent[0], *sent]
