"""Messages, their attempts and resending in the API, over plain HTTP."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.acceptance.svix.receiver import Answer
from tests.acceptance.svix.server import FAIL, PENDING, SUCCESS, UNREACHABLE_URL, Api, ago, unique_name
from tests.support import until

BROKEN = Answer(500, b"broken")


class TestMessages:
    def test_are_created_read_and_listed_with_content_or_without(self, app):
        made = app.api.post(
            f"{app.path}/msg", {"eventType": "a.b", "payload": {"x": 1}, "channels": ["red"]}, expect=202
        )
        assert made["payload"] == {"x": 1}
        assert made["channels"] == ["red"]
        path = f"{app.path}/msg"
        assert app.api.get(f"{path}/{made['id']}") == made
        assert app.api.get(path)["data"] == [made]
        assert app.api.get(f"{path}/{made['id']}", with_content=False)["payload"] == {}
        assert app.api.get(path, with_content=False)["data"][0]["payload"] == {}
        silent = app.api.ask(
            "POST", f"{path}?with_content=false", expect=202, json={"eventType": "a.b", "payload": {"y": 1}}
        )
        assert silent["payload"] == {}
        assert app.api.get(f"{path}/{silent['id']}")["payload"] == {"y": 1}

    def test_are_filtered_by_channel_type_and_tag(self, app):
        one = app.send(kind="a.one", channels=["red", "blue"], tags=["x"])
        two = app.send(kind="a.two", channels=["blue"])
        three = app.send(kind="a.three")
        path = f"{app.path}/msg"

        def found(query: str) -> list[str]:
            return [row["id"] for row in app.api.get(f"{path}?{query}")["data"]]

        assert found("channel=blue") == [two, one]
        assert found("tag=x") == [one]
        for spelling in (
            "event_types=a.one,a.three",
            "event_types=a.one&event_types=a.three",
            "event_types[]=a.one&event_types[]=a.three",
            "event_types[0]=a.one&event_types[1]=a.three",
        ):
            assert found(spelling) == [three, one], spelling

    def test_an_event_id_is_unique(self, server, app):
        body = {"eventType": "a.b", "payload": {}, "eventId": unique_name()}
        made = app.api.post(f"{app.path}/msg", body, expect=202)
        assert app.api.post(f"{app.path}/msg", body, expect=409)["code"]
        assert app.api.get(f"{app.path}/msg/{body['eventId']}")["id"] == made["id"]
        app.api.post(f"{server.application().path}/msg", body, expect=202)

    def test_one_idempotency_key_makes_one_message(self, app):
        key = {"idempotency-key": unique_name()}
        first = app.api.post(f"{app.path}/msg", {"eventType": "a.b", "payload": {}}, expect=202, headers=key)
        again = app.api.post(f"{app.path}/msg", {"eventType": "a.b", "payload": {}}, expect=202, headers=key)
        assert first["id"] == again["id"]
        other = app.api.http.post(f"{app.path}/msg", json={"eventType": "a.c", "payload": {}}, headers=key)
        assert other.status_code in {409, 422}
        assert [row["id"] for row in app.api.get(f"{app.path}/msg")["data"]] == [first["id"]]

    @pytest.mark.parametrize("body", [
        {"eventType": "a.b"}, {"payload": {}}, {"eventType": "a b", "payload": {}}, {"eventType": "a.b", "payload": [1]},
        {"eventType": "a.b", "payload": "x"}, {"eventType": "a.b", "payload": {}, "channels": ["with space"]},
        {"eventType": "a.b", "payload": {}, "payloadRetentionPeriod": 0}, {"eventType": "a.b", "payload": {}, "eventId": "msg_x"},
        {"eventType": "a.b", "payload": {}, "tags": [str(n) for n in range(6)]},
        {"eventType": "a.b", "payload": {}, "deliverAt": "yesterday"},
    ])  # fmt: skip
    def test_bad_ones_are_refused(self, app, body):
        assert app.api.post(f"{app.path}/msg", body, expect=422)["detail"][0]["loc"][0] == "body"

    def test_of_eight_megabytes_are_too_large(self, app):
        content = b'{"eventType":"a.b","payload":{"x":"' + b"y" * 8_000_000 + b'"}}'
        refused = app.api.ask("POST", f"{app.path}/msg", expect=413, content=content)
        assert refused["code"] == "payload_too_large"

    def test_create_their_application_if_asked(self, api):
        uid = unique_name()
        body = {"eventType": "a.b", "payload": {}}
        api.post(f"/app/{uid}/msg", body, expect=404)
        made = api.post(f"/app/{uid}/msg", body | {"application": {"name": "Implied", "uid": uid}}, expect=202)
        assert api.get(f"/app/{uid}")["name"] == "Implied"
        api.post(f"/app/{uid}/msg", body | {"application": {"name": "Ignored", "uid": uid}}, expect=202)
        assert api.get(f"/app/{uid}")["name"] == "Implied"
        assert api.get(f"/app/{uid}/msg/{made['id']}")["id"] == made["id"]
        for application, kind in (
            ({"name": "x"}, "application_uid_missing"),
            ({"name": "x", "uid": unique_name()}, "application_uid_mismatch"),
        ):
            refused = api.post(f"/app/{unique_name()}/msg", body | {"application": application}, expect=422)
            assert refused["detail"][0]["type"] == kind

    def test_are_expunged_for_good(self, app, receiver):
        box = receiver.mailbox()
        endpoint = app.endpoint(box)
        message = app.send({"private": "yes"})
        app.wait_status(message, endpoint, SUCCESS)
        path = f"{app.path}/msg/{message}"
        app.api.delete(f"{path}/content")
        assert app.api.get(path)["payload"] == {"expired": True}
        assert app.api.get(f"{app.path}/msg")["data"][0]["payload"] == {"expired": True}
        assert app.api.post(f"{path}/endpoint/{endpoint['id']}/resend", expect=400)["code"] == "missing_payload"

    def test_lose_their_content_after_its_retention(self, app, server):
        message = app.send({"private": "yes"}, payloadRetentionHours=1)
        server.query(
            "update boathook.event set content_until = now() - interval '1 second' where application = %s returning id",
            app.id,
        )
        until(lambda: app.api.get(f"{app.path}/msg/{message}")["payload"] == {"expired": True})

    def test_a_precheck_reports_whether_there_are_recipients(self, app):
        path = f"{app.path}/msg/precheck/active"
        assert app.api.post(path, {"eventType": "a.b"}) == {"active": False}
        app.endpoint(UNREACHABLE_URL, channels=["red"])
        assert app.api.post(path, {"eventType": "a.b"}) == {"active": False}
        assert app.api.post(path, {"eventType": "a.b", "channels": ["red"]}) == {"active": True}

    def test_lists_are_paged_both_ways(self, app):
        sent = [app.send({"n": n}) for n in range(7)]
        path = f"{app.path}/msg"
        assert [row["id"] for row in app.api.pages(path, limit=3)] == sent[::-1]
        first = app.api.get(path, limit=3)
        second = app.api.get(path, limit=3, iterator=first["iterator"])
        assert [row["id"] for row in second["data"]] == sent[::-1][3:6]
        assert [row["id"] for row in app.api.get(path, limit=3, iterator=second["prevIterator"])["data"]] == sent[::-1][
            :3
        ]
        middle = app.api.get(f"{path}/{sent[3]}")["timestamp"]
        later = [row["id"] for row in app.api.get(path, after=middle)["data"]]
        earlier = [row["id"] for row in app.api.get(path, before=middle)["data"]]
        assert set(later) >= set(sent[3:]), "a window begins with its start"
        assert sent[3] not in earlier
        assert set(earlier) >= set(sent[:3])
        assert not set(later) & set(sent[:3])
        naive = middle.removesuffix("Z").split("+")[0]
        for spelling in (naive, f"{naive.replace('T', ' ')} UTC"):
            assert [row["id"] for row in app.api.get(path, after=spelling)["data"]] == later
        app.api.get(path, before="yesterday", expect=422)


class TestAttempts:
    def test_are_found_in_every_way(self, app, receiver):
        good = app.endpoint(receiver.mailbox(), uid="good")
        bad = app.endpoint(receiver.mailbox(Answer(404, b"no")), uid="bad", retrySchedule=[0.05])
        red = app.send(kind="a.one", channels=["red"])
        blue = app.send(kind="a.two", channels=["blue"])
        for message in (red, blue):
            app.wait_status(message, good, SUCCESS)
            app.wait_status(message, bad, FAIL)

        def count(path: str, **query: Any) -> int:
            return len(app.api.get(f"{app.path}/attempt/{path}", **query)["data"])

        assert count("endpoint/bad") == count(f"endpoint/{bad['id']}") == 4
        assert count("endpoint/bad", status=FAIL) == count("endpoint/bad", status_code_class=400) == 4
        assert count("endpoint/bad", status=SUCCESS) == count("endpoint/bad", status_code_class=500) == 0
        assert count("endpoint/bad", channel="red") == count("endpoint/bad", event_types="a.two") == 2
        assert count(f"msg/{red}") == 3
        assert count(f"msg/{red}", endpoint_id="bad") == count(f"msg/{red}", endpoint_id=bad["id"]) == 2
        assert count(f"msg/{red}", status=SUCCESS) == count(f"msg/{red}", status_code_class=200) == 1
        assert count(f"msg/{red}", event_types="a.two") == 0
        rows = app.api.get(f"{app.path}/attempt/msg/{red}", with_content=False)["data"]
        assert {row["response"] for row in rows} <= {"{}", ""}
        assert "msg" not in rows[0] or rows[0]["msg"] is None
        assert app.api.get(f"{app.path}/attempt/msg/{red}", with_msg=True)["data"][0]["msg"]["id"] == red
        by_uid = app.api.get(f"{app.path}/endpoint/bad/msg")["data"]
        assert [row["id"] for row in by_uid] == [blue, red]
        assert [row["status"] for row in by_uid] == [FAIL, FAIL]
        for spelling in (
            "channel=red",
            "event_types=a.one",
            "event_types[]=a.one",
            "event_types[0]=a.one",
            "event_types=a.one,x",
        ):
            assert [row["id"] for row in app.api.get(f"{app.path}/endpoint/bad/msg?{spelling}")["data"]] == [red]
        old = app.api.get(f"{app.path}/msg/{red}/attempt")["data"]
        assert len(old) == 3
        assert len(app.api.get(f"{app.path}/msg/{red}/endpoint/bad/attempt")["data"]) == 2

    def test_destinations_are_listed_forward_and_back_and_after_a_deletion(self, app, receiver):
        endpoints = [app.endpoint(receiver.mailbox()) for _ in range(3)]
        message = app.send()
        for endpoint in endpoints:
            app.wait_status(message, endpoint, SUCCESS)
        path = f"{app.path}/msg/{message}/endpoint"
        names = [endpoint["id"] for endpoint in endpoints]
        first = app.api.get(path, limit=2)
        assert [row["id"] for row in first["data"]] == names[:2]
        assert first["done"] is False
        second = app.api.get(path, limit=2, iterator=first["iterator"])
        assert [row["id"] for row in second["data"]] == names[2:]
        assert second["done"] is True
        assert [row["id"] for row in app.api.get(path, limit=2, iterator=second["prevIterator"])["data"]] == names[:2]
        app.api.delete(f"{app.path}/endpoint/{names[1]}")
        assert [row["id"] for row in app.api.get(path)["data"]] == names

    def test_many_are_read_in_pages_forward_and_back(self, app, receiver):
        endpoint = app.endpoint(receiver.mailbox())
        for n in range(28):
            app.send({"n": n})
        app.wait_attempts(endpoint, 28)
        path = f"{app.path}/attempt/endpoint/{endpoint['id']}"
        whole = [row["id"] for row in app.api.get(path)["data"]]
        assert len(set(whole)) == 28
        pages = [app.api.get(path, limit=10)]
        while not pages[-1]["done"]:
            pages.append(app.api.get(path, limit=10, iterator=pages[-1]["iterator"]))
        assert [row["id"] for page in pages for row in page["data"]] == whole
        back = [row["id"] for row in app.api.get(path, limit=10, iterator=pages[-1]["prevIterator"])["data"]]
        assert back == whole[10:20]
        start, end = app.api.get(f"{app.path}/msg", limit=1)["data"][0]["timestamp"], ago(hours=-0.5)
        both = app.api.get(path, after=ago(minutes=30), before=end)["data"]
        assert [row["id"] for row in both] == whole
        assert app.api.get(path, before=ago(minutes=30))["data"] == []
        assert start

    def test_a_response_is_expunged(self, app, receiver):
        endpoint = app.endpoint(receiver.mailbox(Answer(200, b"private")))
        message = app.send()
        app.wait_status(message, endpoint, SUCCESS)
        [attempt] = app.attempts(endpoint)
        path = f"{app.path}/msg/{message}/attempt/{attempt['id']}"
        assert app.api.get(path)["response"] == "private"
        app.api.delete(f"{path}/content")
        assert app.api.get(path) == attempt | {"response": "EXPUNGED"}


class TestStatistics:
    def test_count_attempts_by_status(self, app, receiver):
        endpoint = app.endpoint(receiver.mailbox(BROKEN, Answer()), retrySchedule=[0.05])
        path = f"{app.path}/endpoint/{endpoint['id']}/stats"
        assert app.api.get(path) == {"success": 0, "pending": 0, "sending": 0, "fail": 0, "canceled": 0}
        message = app.send()
        app.wait_status(message, endpoint, SUCCESS)
        counts = app.api.get(path, since=ago(days=1))
        assert (counts["success"], counts["pending"], counts["sending"]) == (1, 0, 0)
        assert app.api.get(path, since=ago(days=10), until=ago(days=5))["success"] == 0
        later = (datetime.now(UTC) + timedelta(minutes=10)).isoformat()
        app.send(deliverAt=later)
        assert app.api.get(path)["pending"] == 1
        refused = app.api.get(path, since=ago(days=29), expect=400)
        assert refused["code"] == "invalid_range"


class TestRecovering:
    def finished(self, api: Api, task: str) -> dict[str, Any]:
        until(lambda: api.get(f"/background-task/{task}")["status"] != "running")
        found = api.get(f"/background-task/{task}")
        assert found["status"] == "finished", found
        return found

    def test_goes_back_two_weeks_at_most(self, app):
        endpoint = app.endpoint(UNREACHABLE_URL)
        path = f"{app.path}/endpoint/{endpoint['id']}/recover"
        refused = app.api.post(path, {"since": ago(days=14, minutes=10)}, expect=422)
        assert refused["detail"][0]["loc"] == ["body", "since"]
        app.api.post(path, {"since": ago(days=14)}, expect=202)

    def test_resends_only_failed_messages_once(self, app, receiver):
        box = receiver.mailbox(*[BROKEN] * 3, Answer())
        endpoint = app.endpoint(box, retrySchedule=[])
        early = app.send({"n": 0})
        app.wait_status(early, endpoint, FAIL)
        since = (
            datetime.fromisoformat(app.api.get(f"{app.path}/msg/{early}")["timestamp"]) + timedelta(milliseconds=1)
        ).isoformat()
        failed = [app.send({"n": n}) for n in range(1, 3)]
        for message in failed:
            app.wait_status(message, endpoint, FAIL)
        delivered = app.send({"n": 3})
        app.wait_status(delivered, endpoint, SUCCESS)
        path = f"{app.path}/endpoint/{endpoint['id']}/recover"
        task = app.api.post(path, {"since": since}, expect=202)
        assert (task["status"], task["task"]) == ("running", "endpoint.recover")
        assert self.finished(app.api, task["id"])["data"]["messagesSent"] == 2
        for message in failed:
            app.wait_status(message, endpoint, SUCCESS)
        assert app.status(early, endpoint) == FAIL
        counted = {message: box.messages().count(message) for message in (early, *failed, delivered)}
        assert counted == {early: 1, failed[0]: 2, failed[1]: 2, delivered: 1}

    def test_reaches_past_one_page_without_loss_or_repetition(self, app, receiver):
        box = receiver.mailbox(BROKEN)
        endpoint = app.endpoint(box, retrySchedule=[], throttleRate=None)
        sent = {app.send({"n": n}) for n in range(130)}
        box.wait(130, timeout=300)
        until(lambda: not app.api.get(f"{app.path}/endpoint/{endpoint['id']}/msg", status=PENDING)["data"])
        until(
            lambda: len(app.api.pages(f"{app.path}/endpoint/{endpoint['id']}/msg", status=FAIL, limit=250)) == 130,
            timeout=300,
        )
        box.respond_with(Answer())
        task = app.api.post(f"{app.path}/endpoint/{endpoint['id']}/recover", {"since": ago(hours=1)}, expect=202)
        assert self.finished(app.api, task["id"])["data"]["messagesSent"] == 130
        box.wait(260, timeout=300)
        again = box.messages()[130:]
        assert len(again) == 130
        assert set(again) == sent

    def test_replay_missing_sends_messages_never_sent(self, app, receiver):
        before = [app.send({"n": n}) for n in range(3)]
        box = receiver.mailbox()
        endpoint = app.endpoint(box)
        now = app.send({"n": 3})
        box.wait()
        path = f"{app.path}/endpoint/{endpoint['id']}/replay-missing"
        task = app.api.post(path, {"since": ago(hours=1)}, expect=202)
        assert task["task"] == "endpoint.replay"
        assert self.finished(app.api, task["id"])["data"]["messagesSent"] == 3
        box.wait(4)
        assert sorted(box.messages()) == sorted([*before, now])
