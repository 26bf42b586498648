"""File types by magic bytes, and object names."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boathook_app_tools.file_types import extension_of
from boathook_music.kinds import FORMATS, Kind, is_own, split_key, stem_of

HEADS = {
    "mp3": b"ID3\x04\x00",
    "wav": b"RIFF\x00\x00\x00\x00WAVEfmt ",
    "flac": b"fLaC\x00",
    "ogg": b"OggS\x00",
    "m4a": b"\x00\x00\x00\x20ftypM4A \x00",
    "jpg": b"\xff\xd8\xff\xe0",
    "png": b"\x89PNG\r\n\x1a\n",
    "webp": b"RIFF\x00\x00\x00\x00WEBPVP8 ",
    "gif": b"GIF89a",
}
AUDIO = {"mp3", "wav", "flac", "ogg", "m4a"}


@pytest.mark.parametrize("name", HEADS)
def test_file_types_are_detected_by_magic_bytes(name):
    right, wrong = (Kind.AUDIO, Kind.COVER) if name in AUDIO else (Kind.COVER, Kind.AUDIO)
    assert extension_of(HEADS[name]) == name
    assert name in FORMATS[right]
    assert name not in FORMATS[wrong]


@pytest.mark.parametrize("head", [b"\xff\xfb\x90\x64", b"\xff\xf3\x44\xc4", b"\xff\xfa\x90"])
def test_mp3_without_a_tag_is_audio(head):
    assert extension_of(head) == "mp3"


@pytest.mark.parametrize(
    "head",
    [b"", b"<!doctype html>", b"<svg xmlns", b"%PDF-1.7", b"MZ\x90", b"\x7fELF", b"PK\x03\x04", b"\xff\xff\xff", b"\xff\xe8\x00",
     b"\x00\x00\x00\x20ftypheic", b"RIFF\x00\x00\x00\x00AVI "],
)  # fmt: skip
def test_everything_else_is_refused(head):
    assert extension_of(head) == ""


@given(st.text(min_size=1, max_size=300), st.text(min_size=1, max_size=300))
def test_object_names_are_safe_for_any_ids(task, clip):
    stem = stem_of(task, clip)
    assert re.fullmatch(r"tracks/[A-Za-z0-9_-]{1,100}/[A-Za-z0-9_-]{1,100}", stem)
    assert is_own(f"{stem}.mp3")
    assert split_key(f"{stem}.mp3") == (stem, Kind.AUDIO)


@given(st.text(min_size=1), st.text(min_size=1))
def test_other_ids_have_other_names(one, other):
    assert (stem_of(one, "c") == stem_of(other, "c")) == (one == other)


def test_object_names_of_different_ids_differ():
    given_name = stem_of("../etc", "c").split("/")[1]
    assert stem_of(given_name, "c") != stem_of("../etc", "c")


@pytest.mark.parametrize(
    "key", ["tracks/a.mp3", "tracks/a/b/c.mp3", "other/a/b.mp3", "tracks/a/b.exe", "tracks/a/b", "tracks/../b.mp3"]
)
def test_foreign_keys_are_not_own(key):
    assert not is_own(key)
