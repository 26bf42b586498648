"""Pages that speak to boathook by Svix's own client: the move from Svix, and the first five minutes of sending."""

import subprocess
import sys
from pathlib import Path

from tests.acceptance.svix.server import Api, BoathookServer, unique_name
from tests.guards.documents import blocks

PAGE = Path(__file__).parents[3] / "docs/how-to/move-from-svix.md"


def script() -> list[str]:
    """Return the page's script: what it defines, and what it does."""
    return [block.text for block in blocks(PAGE) if block.language == "python"]


def move(there: Api, here: Api) -> str:
    """Run the script as its reader would, in a Python of its own, and return what it prints."""
    defines, does = script()
    assert does.count("Svix(") == 2
    does = does.replace('Svix("the token of Svix")', f'Svix("{there.token}", SvixOptions(server_url="{there.base}"))')
    does = does.replace("the token of boathook", here.token).replace("https://hooks.example.com", here.base)
    done = subprocess.run([sys.executable, "-c", defines + does], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def open_side(server: BoathookServer) -> Api:
    return Api(server.base, server.make_key(f"moving-{unique_name()}"))


def test_the_script_brings_everything_over_once(server):
    old, new = open_side(server), open_side(server)
    for name in ("invoice.paid", "invoice.due"):
        old.post("/event-type", {"name": name, "description": name.title()}, expect=201)
    with_uid = old.post("/app", {"name": "Acme", "uid": "acme", "metadata": {"plan": "pro"}}, expect=201)
    without = old.post("/app", {"name": "Other"}, expect=201)
    endpoint = {"url": "https://example.com/hook", "eventTypes": ["invoice.paid"], "channels": ["eu"]}
    first = old.post(f"/app/{with_uid['id']}/endpoint", endpoint, expect=201)
    old.post(f"/app/{without['id']}/endpoint", {"url": "https://example.org/", "disabled": True}, expect=201)

    assert move(old, new) == "2 endpoints\n"
    assert move(old, new) == "2 endpoints\n", "a second run doubles nothing"

    assert {one["name"] for one in new.pages("/event-type")} == {"invoice.paid", "invoice.due"}
    assert {one["uid"] for one in new.pages("/app")} == {"acme", f"svix-{without['id']}"}
    (copy,) = new.pages("/app/acme/endpoint")
    assert {key: copy[key] for key in endpoint} == endpoint
    secrets = [
        side.get(f"/app/acme/endpoint/{one}/secret")["key"]
        for side, one in ((old, first["id"]), (new, f"svix-{first['id']}"))
    ]
    assert secrets[0] == secrets[1], "customers go on verifying with the secret that they have"
    (other,) = new.pages(f"/app/svix-{without['id']}/endpoint")
    assert other["disabled"]
    old.close()
    new.close()


def test_the_first_message_of_the_page_on_sending_is_sent(server):
    page = PAGE.parents[1] / "sending.md"
    block = next(block for block in blocks(page) if block.language == "python")
    side = open_side(server)
    text = block.text.replace("bhk_the_token", side.token).replace("http://127.0.0.1:8080", side.base)
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (message,) = side.pages("/app/acme/msg")
    assert (message["eventType"], message["eventId"]) == ("invoice.paid", "in_1")
    side.close()
