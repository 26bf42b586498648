"""Creates sample data of every kind for the console: events, messages, rejections, conflicts and dead letters."""

import json
from collections.abc import Iterator
from itertools import count
from typing import Any

import httpx

from tests.acceptance.conftest import payload, signed
from tests.browser.conftest import ConsoleServer
from tests.browser.receiver import Receiver
from tests.support import until

_NUMBERS = count()


class SampleData:
    """Sends requests and runs commands as senders, customers and operators do, with the given texts.

    Args:
        texts: texts that senders and customers may choose; each is used in turn, then again from the first.
    """

    def __init__(self, server: ConsoleServer, receiver: Receiver, texts: tuple[str, ...]) -> None:
        self.server = server
        self.receiver = receiver
        self._texts = texts
        self._next = 0
        token = server.running.listing("keys", "create", "--scope", "organization", "--name", "sample-data")[0]["token"]
        self.api = httpx.Client(
            base_url=f"{server.base}/api/v1", headers={"authorization": f"Bearer {token}"}, timeout=300
        )

    @property
    def used(self) -> int:
        """The number of texts used so far."""
        return self._next

    def text(self) -> str:
        self._next += 1
        return self._texts[(self._next - 1) % len(self._texts)]

    def all(self) -> None:
        """Create all sample data once, and wait until it is processed."""
        self.receive()
        self.refuse()
        self.conflict()
        self.send()
        until(lambda: self.server.ask("select count(*) from boathook.delivery where state = 'dead'")[0][0] >= 2)
        until(lambda: not self.server.ask("select from boathook.delivery where state <> 'dead' and attempts = 0"))
        self.decide()

    def receive(self, events: int = 6) -> None:
        """Send events that succeed, are ignored and become dead letters."""
        kinds = ("payment.paid", "ignored.one", "broken.once", "broken.twice", "order.made")
        for n in range(events):
            self.event(kinds[n % len(kinds)])

    def event(self, kind: str, texts: int = 3) -> None:
        """Send one event with texts in its body, headers and URL."""
        content = {
            "note": [self.text() for _ in range(texts)],
            self.text(): {"deep": self.text()},
            "customer": "c1",
            "n": 1,
        }
        body, headers = signed(payload(f"evt_{next(_NUMBERS)}_{self.text()[:60]}", kind, **content))
        headers |= {"x-note": _header(self.text()), "user-agent": _header(self.text())}
        answer = httpx.post(f"{self.server.base}/in/stripe", content=body, headers=headers, timeout=300)
        assert answer.status_code == 200, answer.text

    def refuse(self, requests: int = 2) -> None:
        """Send requests with wrong signatures."""
        for _ in range(requests):
            body = json.dumps({"id": self.text(), "type": self.text(), "why": self.text()}).encode()
            headers = {"stripe-signature": _header(f"t=1,v1={self.text()}"), "user-agent": _header(self.text())}
            address = httpx.URL(f"{self.server.base}/in/stripe", params={"q": self.text()})
            assert httpx.post(address, content=body, headers=headers).status_code in {400, 401}

    def conflict(self) -> None:
        """Send two different events with the same key."""
        key = f"evt_same_{next(_NUMBERS)}"
        for _ in range(2):
            body, headers = signed(payload(key, note=self.text(), other=self.text()))
            assert (
                httpx.post(f"{self.server.base}/in/stripe", content=body, headers=headers, timeout=300).status_code
                < 300
            )

    def send(self) -> None:
        """Create an application with a working and a failing endpoint, and send messages to them."""
        self.post("/event-type", name=f"order.made{next(_NUMBERS)}", description=self.text(), groupName="orders",
                  schemas={"1": {"type": "object", "title": self.text(), "examples": [{"note": self.text()}]}})  # fmt: skip
        application = self.post("/app", name=self.text(), uid=f"shop-{next(_NUMBERS)}", metadata={"note": self.text()})[
            "id"
        ]
        self.receiver.body, self.receiver.kind = self.text().encode(), "text/html"
        self.receiver.statuses["/bad"] = 500
        for path in ("good", "bad"):
            self.post(f"/app/{application}/endpoint", url=f"{self.receiver.base}/{path}", description=self.text(),
                      metadata={"note": self.text()}, headers={"x-note": _header(self.text())})  # fmt: skip
        for _ in range(2):
            self.post(
                f"/app/{application}/msg",
                eventType="order.made",
                payload={"note": self.text(), self.text(): 1},
                tags=[f"t{next(_NUMBERS)}"],
            )
        until(lambda: len(self.receiver.to("/good")) >= 2)

    def decide(self) -> None:
        """Ignore a dead letter with a note, by the command line."""
        dead = self.server.running.listing("dead", "list")
        self.server.running.cli("dead", "ignore", dead[0]["id"], "--note", self.text().replace("\x00", " "), "--yes")

    def post(self, path: str, **body: Any) -> Any:
        answer = self.api.post(path, json=body)
        assert answer.status_code < 300, f"{path}: {answer.status_code} {answer.text}"
        return answer.json() if answer.content else None


def _header(text: str) -> str:
    """Return the characters of a text that a header may contain."""
    return "".join(char for char in text if char.isascii() and char.isprintable())[:500]


def paths_of(page: Any, base: str) -> Iterator[str]:
    """Yield the paths below /console that a page links to, except downloads."""
    for address in page.eval_on_selector_all("a[href]", "links => links.map(link => link.href)"):
        url = httpx.URL(address)
        is_ours = str(url).startswith(f"{base}/console") and "/static/" not in url.path
        if is_ours and "/download" not in url.path and not url.path.endswith(("/body", "/payload", "/curl")):
            yield url.raw_path.decode()
