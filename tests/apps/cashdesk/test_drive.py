"""The fiscal drive: a plug-in of another package, and a simulation that never passes for a drive."""

import json
import subprocess
from pathlib import Path
from textwrap import dedent
from typing import Any

import httpx
import pytest

from boathook.domain.errors import ConfigError
from boathook_cashdesk import hook
from boathook_cashdesk.drive import SimulatedDrive, open_drive
from boathook_cashdesk.fiscal import check_drive
from boathook_cashdesk.receiver import Receiver
from boathook_cashdesk.settings import CashdeskSettings, DriveSettings
from tests.apps.cashdesk.server import Cabinet, CashdeskServer, wait_until_delivered
from tests.commands import boathook_command

NOTICE = "The fiscal drive is simulated"
SIMULATED = "the fiscal drive is simulated, so no receipt is recorded"


def install_plug_in(folder: Path) -> str:
    """Write a package with the drive ``strict``, as pip would install it; return the folder for PYTHONPATH."""
    (folder / "strict_drive-1.0.dist-info").mkdir(parents=True)
    (folder / "strict_drive-1.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: strict-drive\nVersion: 1.0\n"
    )
    points = "[boathook.cashdesk.drives]\nstrict = strict_drive:open_drive\nbroken = strict_drive:missing\n"
    (folder / "strict_drive-1.0.dist-info" / "entry_points.txt").write_text(points)
    source = """
        class Drive:
            def __init__(self, options):
                self.number = options["number"]

            async def fiscalise(self, receipt, attempt, *, idempotency_key):
                if receipt["total"] > 1000:
                    return {"sign": None, "declined": "LIMIT: too much"}
                return {"sign": idempotency_key[-4:], "declined": None, "drive": self.number}

        def open_drive(options):
            return Drive(options)
    """
    (folder / "strict_drive.py").write_text(dedent(source))
    return str(folder)


class TestSettings:
    @pytest.mark.parametrize(
        ("table", "words"),
        [
            ({"name": "strict", "seconds": 0.1, "busy": 0.5}, "has no busy, seconds; write its keys under"),
            ({"options": {"number": "1"}}, "has no options; its keys are those of [cashdesk.drive]"),
        ],
    )
    def test_keys_belong_to_one_drive(self, table: Any, words: str):
        with pytest.raises(ValueError, match="has no") as caught:
            DriveSettings.model_validate(table)
        assert words in str(caught.value)

    def test_the_simulation_is_the_default(self):
        assert isinstance(open_drive(DriveSettings()), SimulatedDrive)

    def test_an_unknown_drive_is_an_error_that_names_the_known_ones(self):
        with pytest.raises(ConfigError, match=r"cashdesk\.drive\.name: .*'nothing'.* there are: simulated"):
            open_drive(DriveSettings(name="nothing"))


def test_the_simulation_is_found_and_refused_in_production():
    assert hook.manifest.check is check_drive
    [(found, fix)] = check_drive(CashdeskSettings(), False)
    assert found == SIMULATED
    assert "[cashdesk.drive]" in fix
    with pytest.raises(ConfigError, match=r"cashdesk\.drive: .*server\.production is true"):
        list(check_drive(CashdeskSettings(), True))


async def test_the_simulation_is_on_every_page_and_receipt(cabinet: Cabinet, receiver: Receiver):
    shop = await cabinet.client()
    made = await shop.webhook(receiver, "/a")
    sale = await shop.sale()
    await wait_until_delivered(cabinet, shop.user)
    assert (await shop.do("GET", f"receipts/{sale['receipt']['id']}"))["drive"] == "SIMULATED"
    sent = [json.loads(body) for body in receiver.bodies["/a"]]
    told = [body["data"]["fnNumber"] for body in sent if (body["type"], body["action"]) == ("RECEIPT", "UPDATE")]
    assert told == ["SIMULATED"]
    base = cabinet.running.base
    async with httpx.AsyncClient(base_url=base, headers={"accept": "text/html", "origin": base}) as http:
        entered = await http.post("/cabinet/sign-in", data={"token": shop.token})
        webhook = f"webhooks/{made['id']}"
        paths = ("", "nothing", "webhooks/new", webhook, f"{webhook}/delete")
        pages = [await http.get(f"/cabinet/{path}") for path in paths]
        http.cookies.clear()
        pages.append(await http.get("/cabinet/sign-in"))
    assert entered.status_code == 303
    assert [page.status_code for page in pages] == [200, 404, 200, 200, 200, 200]
    assert all(NOTICE in page.text for page in pages)


def test_the_simulation_is_announced_at_the_start_and_by_doctor(cabinet: Cabinet):
    notes = [json.loads(line).get("note") for line in cabinet.running.log().splitlines() if line.startswith("{")]
    assert SIMULATED in notes
    assert SIMULATED in cabinet.running.cli("doctor", check=False).stdout.replace("\n", " ")


def test_production_refuses_the_simulation(running: CashdeskServer):
    running.set_key("server", "production = true")
    done = boathook_command("serve", cwd=running.folder, env=running.environment)
    assert done.returncode != 0
    assert "server.production is true" in done.stdout + done.stderr


async def test_a_plug_in_records_receipts_in_production(running: CashdeskServer, tmp_path: Path):
    path = install_plug_in(tmp_path / "plug-in")
    running.set_key("server", "production = true")
    file = running.folder / "boathook.toml"
    lines = ["[cashdesk.drive]", 'name = "strict"', "[cashdesk.drive.options]", 'number = "9999000011112222"']
    rewrite_drive(file, lines)
    cabinet = Cabinet(running.start(PYTHONPATH=path))
    async with Receiver().open() as receiver:
        shop = await cabinet.client()
        await shop.webhook(receiver, "/a")
        recorded, declined = await shop.sale(price=100), await shop.sale(price=600)
        await wait_until_delivered(cabinet, shop.user)
        receipt = await shop.do("GET", f"receipts/{recorded['receipt']['id']}")
        refused = await shop.do("GET", f"receipts/{declined['receipt']['id']}")
        async with httpx.AsyncClient(base_url=running.base, headers={"accept": "text/html"}) as http:
            page = await http.get("/cabinet/")
    assert (receipt["state"], receipt["drive"], len(receipt["sign"])) == ("DONE", "9999000011112222", 4)
    assert (refused["state"], refused["error"], refused["drive"]) == ("FAILED", "LIMIT: too much", None)
    assert NOTICE not in page.text
    assert running.stop() == 0


def test_a_plug_in_that_fails_prevents_the_start(running: CashdeskServer, tmp_path: Path):
    environment = running.environment | {"PYTHONPATH": install_plug_in(tmp_path / "plug-in")}
    rewrite_drive(running.folder / "boathook.toml", ["[cashdesk.drive]", 'name = "broken"'])
    done: subprocess.CompletedProcess[str] = boathook_command("serve", cwd=running.folder, env=environment)
    assert done.returncode != 0
    assert "cashdesk.drive: 'broken' (strict_drive:missing) fails" in done.stdout + done.stderr


def rewrite_drive(file: Path, lines: list[str]) -> None:
    """Replace the table ``[cashdesk.drive]`` of a settings file."""
    before, _, rest = file.read_text().partition("[cashdesk.drive]")
    after = rest[rest.index("\n[") :] if "\n[" in rest else ""
    file.write_text(before + "\n".join(lines) + after + "\n")
