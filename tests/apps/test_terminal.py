"""What apps list is to be read, and copied, on a narrow terminal."""

from boathook_app_tools.terminal import print_rows

ID = "dlv_001m7zdt7a5fn1vw9z95mm7sxd1_0"


def shown(capsys, monkeypatch, row: dict[str, str]) -> str:
    monkeypatch.setenv("COLUMNS", "80")
    print_rows([row], as_json=False)
    return capsys.readouterr().out


def test_an_id_is_on_one_line_to_be_copied(capsys, monkeypatch):
    words = "the reason is told at length " * 4
    out = shown(
        capsys, monkeypatch, {"id": ID, "recipient": "handler:fleet.apply", "note": words, "code": "RaiseError"}
    )
    assert ID in out
    assert max(map(len, out.splitlines())) <= 80


def test_piped_rows_are_on_one_line_and_not_truncated(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    words = ("the reason is told at length " * 40).strip()
    print_rows([{"id": ID, "note": words}], as_json=False)
    _, line = capsys.readouterr().out.splitlines()
    assert line.startswith(ID)
    assert line.rstrip().endswith(words)


def test_an_id_that_no_terminal_has_room_for_is_folded_and_not_cut(capsys, monkeypatch):
    out = shown(capsys, monkeypatch, {"id": "x" * 200, "state": "free"})
    assert out.count("x") == 200
