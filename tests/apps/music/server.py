"""Runs a boathook process with the music app, a slow file server and an S3 bucket."""

import base64
import hashlib
import hmac
import json
import textwrap
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx

from boathook_music.file_server import FileServer
from tests.apps.app_server import AppServer
from tests.support import until

SECRET = "music-test-secret"


class S3Server:
    """moto's S3 server on loopback, with one bucket."""

    KEYS: Final = {"key_id": "AKIDEXAMPLE", "secret_key": "geheim"}

    def __init__(self) -> None:
        from moto.server import ThreadedMotoServer

        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self._server.start()
        host, port = self._server.get_host_and_port()
        self.url = f"http://{host}:{port}"
        self.bucket = f"songs-{uuid.uuid4().hex[:8]}"
        self.client = self._client()
        self.client.create_bucket(Bucket=self.bucket)

    def _client(self) -> Any:
        import boto3
        from botocore.config import Config

        return boto3.client(
            "s3",
            endpoint_url=self.url,
            region_name="us-east-1",
            aws_access_key_id=self.KEYS["key_id"],
            aws_secret_access_key=self.KEYS["secret_key"],
            config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 1}),
        )

    @property
    def settings(self) -> str:
        """The table ``[music.storage]``."""
        return textwrap.dedent(f"""
            [music.storage]
            kind = "s3"
            endpoint = "{self.url}"
            bucket = "{self.bucket}"
            key_id = "{self.KEYS["key_id"]}"
            secret_key = "{self.KEYS["secret_key"]}"
        """)

    def put(self, key: str, content: bytes) -> None:
        self.client.put_object(Bucket=self.bucket, Key=key, Body=content)

    def content(self, key: str) -> bytes:
        return self.client.get_object(Bucket=self.bucket, Key=key)["Body"].read()

    def listed(self) -> list[str]:
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket)
        return [one["Key"] for page in pages for one in page.get("Contents", ())]

    def close(self) -> None:
        self._server.stop()


class SlowStudio(FileServer):
    """A file server that pauses in the middle of files under ``/slow/`` until `go_on` is set; ``/large/`` files are large."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = threading.Event()

    def content(self, path: str) -> bytes:
        return super().content(path) * (5 if path.startswith("/large/") else 1)

    def pieces(self, path: str, content: bytes) -> Iterator[bytes]:
        if not path.startswith("/slow/"):
            yield from super().pieces(path, content)
            return
        yield content[: len(content) // 2]
        self.go_on.wait(60)
        yield content[len(content) // 2 :]


class MusicServer(AppServer):
    """A `boathook serve` process with the music app, its requests and its tables."""

    app = "music"
    page = "/api/music/tracks"

    def __init__(
        self,
        folder: Path,
        database_url: str,
        *,
        music: str = "",
        storage: str = "",
        allow: str = "127.0.0.0/8",
        senders: int = 0,
    ) -> None:
        self._key = ""
        own = f'[music]\nsecret = "{SECRET}"\n'
        super().__init__(folder, database_url, own, music, storage, allow=allow, senders=senders)

    def post(self, body: bytes, headers: dict[str, str], path: str = "/generate-music-callb") -> httpx.Response:
        return httpx.post(f"{self.base}{path}", content=body, headers=headers, timeout=300)

    def send_callback(self, task: str, stage: str = "complete", *, answer: int = 200, **how: Any) -> httpx.Response:
        """Send a callback with the signature of kie.ai."""
        headers = how.pop("headers", {})
        body = callback(task, stage, **how)
        response = self.post(body, proof(task) | headers)
        assert response.status_code == answer, response.text
        return response

    def register(self, task: str, **fields: Any) -> dict[str, Any]:
        """Register a track over the HTTP API."""
        response = self.api("POST", "/tracks", json={"task_id": task, **fields})
        assert response.status_code in (200, 201), response.text
        return response.json()

    def api(self, method: str, path: str, **how: Any) -> httpx.Response:
        if not self._key:
            told = self.cli("keys", "create", "--scope", "organization", "--json").stdout
            self._key = json.loads(told)["token"]
        headers = {"authorization": f"Bearer {self._key}", "accept-language": how.pop("language", "")}
        return httpx.request(method, f"{self.base}/api/music{path}", headers=headers, timeout=300, **how)

    def track(self, task: str) -> dict[str, Any]:
        (found,) = self.rows("select * from music.track where task_id = %s", task)
        return found

    def status(self, task: str) -> str:
        return self.track(task)["status"]

    def files(self, task: str) -> dict[tuple[str, str], dict[str, Any]]:
        rows = self.rows("select * from music.file where task_id = %s", task)
        return {(row["clip_id"], row["kind"]): row for row in rows}

    def states(self, task: str) -> list[str]:
        return sorted(row["state"] for row in self.files(task).values())

    def events(self, key: str) -> int:
        return self.rows("select count(*) as n from boathook.event where dedup_key = %s", key)[0]["n"]

    def stored(self, key: str) -> bytes:
        return (self.folder / "data" / "music" / key).read_bytes()

    def await_files(self, task: str, *states: str, timeout: float = 300) -> dict[tuple[str, str], dict[str, Any]]:
        until(lambda: self.states(task) == sorted(states), timeout=timeout)
        return self.files(task)

    def is_idle(self, task: str) -> bool:
        """Whether no delivery of a task's events is pending or running."""
        return not self.rows(
            "select from boathook.delivery d join boathook.event e on e.id = d.event_id"
            " where d.state in ('leased', 'pending') and position(%s in convert_from(e.body, 'utf8')) > 0",
            task,
        )


started = MusicServer.started


def unique(prefix: str = "task") -> str:
    return f"{prefix}-{uuid.uuid4().hex[:16]}"


def clip(id: str, base: str, folder: str = "/files/") -> dict[str, Any]:
    return {
        "id": id,
        "audio_url": f"{base}{folder}{id}.mp3",
        "image_url": f"{base}{folder}{id}.jpeg",
        "title": "Iron Man",
        "duration": 198.44,
    }


def callback(task: str, stage: str = "complete", *, code: int = 200, clips: Any = (), said: str = "said") -> bytes:
    data = {"callbackType": stage, "task_id": task, "data": list(clips)}
    return json.dumps({"code": code, "msg": said, "data": data}).encode()


def proof(task: str, secret: str = SECRET, at: float | None = None) -> dict[str, str]:
    """Return the signature headers that kie.ai sends with a callback."""
    moment = str(int(time.time() if at is None else at))
    digest = hmac.new(secret.encode(), f"{task}.{moment}".encode(), hashlib.sha256).digest()
    signature = base64.b64encode(digest).decode()
    return {
        "content-type": "application/json",
        "x-webhook-timestamp": moment,
        "x-webhook-signature": signature,
    }
