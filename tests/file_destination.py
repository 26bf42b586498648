"""The kind of destination on the page about them, installed as a package; and variants of it for tests."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.guards.documents import ROOT, blocks

PAGE = ROOT / "docs/how-to/destinations.md"
MODULE = "boathook_files"
VARIANTS = '''

plain_file = DestinationKind(
    label="Unsigned file", fields="boathook_files:FileFields", executor="boathook_files:FileExecutor", is_signed=False
)
echo = DestinationKind(label="Echo", fields="boathook_files:FileFields", executor="boathook_files:EchoExecutor")


class EchoExecutor(MessageExecutor[FileFields]):
    """Answers with what it was given."""

    async def send(self, fields, message):
        if fields.path == "slow.jsonl":
            await asyncio.Event().wait()
        if fields.path == "wrong.jsonl":
            return Receipt(Failure(code="WRONG", error=f"the token {fields.token} is wrong"), response=b"x" * 10_000)
        return Receipt(Success(), response=f"token={fields.token}".encode(), status=7)
'''


def install(folder: Path) -> None:
    """Write the module, and its metadata as an installer writes them."""
    [source] = [block.text for block in blocks(PAGE) if block.language == "python"]
    folder.mkdir(parents=True)
    (folder / f"{MODULE}.py").write_text(source + VARIANTS)
    metadata = folder / "boathook_files-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: boathook-files\nVersion: 1.0\n")
    kinds = "".join(f"{name} = {MODULE}:{name}\n" for name in ("file", "plain_file", "echo"))
    (metadata / "entry_points.txt").write_text(f"[boathook.destinations]\n{kinds}")


@contextmanager
def installed(folder: Path) -> Iterator[None]:
    """Have the package installed in this process."""
    install(folder)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop(MODULE, None)
