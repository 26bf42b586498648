"""The command that writes the files of a new project."""

from pathlib import Path
from typing import Annotated

import typer

from boathook.cli.context import UsageError, out
from boathook.cli.options import Json, complete_providers
from boathook.cli.output import print_json, say


def init(
    source: Annotated[
        str,
        typer.Option(
            metavar="PROVIDER", help="Where webhooks come from: its provider.", autocompletion=complete_providers
        ),
    ] = "stripe",
    folder: Annotated[
        Path, typer.Argument(metavar="[FOLDER]", help="Folder of the project; created if missing.")
    ] = Path(),
    fastapi: Annotated[
        bool, typer.Option("--fastapi", help="A FastAPI application that receives webhooks itself, with uvicorn.")
    ] = False,
    django: Annotated[
        bool, typer.Option("--django", help="A Django project, which needs a PostgreSQL of its own.")
    ] = False,
    plain: Annotated[bool, typer.Option("--plain", help="Handlers alone; the default.")] = False,
    as_json: Json = False,
) -> None:
    """
    Write the files of a new project: settings, a handler, and a test of it that passes.

    Existing files are never overwritten. `.env` has a made-up secret, which `boathook trigger` signs with; replace it
    by that of the sender. Then run the command that is printed, such as `boathook dev`.
    """
    # Imported only here, as it imports all provider recipes.
    from boathook_dev.scaffold import NEXT_COMMANDS, ProjectKind, project_files

    if fastapi + django + plain > 1:
        raise UsageError("choose one of --fastapi, --django and --plain")
    kind = ProjectKind.FASTAPI if fastapi else ProjectKind.DJANGO if django else ProjectKind.PLAIN
    files = {name: text for name, text in project_files(source, kind).items() if text}
    has_gitignore = (folder / ".gitignore").exists()
    if has_gitignore:
        del files[".gitignore"]
    existing = [name for name in files if (folder / name).exists()]
    if existing:
        raise UsageError(
            f"{', '.join(existing)} already exist in {folder.absolute()}; nothing was written;"
            " choose another folder: boathook init FOLDER"
        )
    _write(folder, files)
    if as_json:
        print_json({"folder": folder.absolute(), "files": list(files)})
        return
    for name in files:
        say(f"wrote {folder / name}")
    if has_gitignore:
        say("add .env and .boathook/ to .gitignore")
    place = "" if folder == Path() else f"cd {folder} && "
    out.print(f"\nNext: {place}{NEXT_COMMANDS[kind]}", soft_wrap=True, markup=False)


def _write(folder: Path, files: dict[str, str]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            file = folder / name
            file.parent.mkdir(exist_ok=True)
            file.touch(mode=0o600 if name == ".env" else 0o666, exist_ok=False)
            file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {error.filename or folder}: {error.strerror}") from None
