"""The source of a path, the guess for a path without one, and what of such a path may be written down."""

import pytest

from boathook.ingest.source_paths import SourcePaths, mask_path, mask_query

TOKEN_PATH = "/hooks/9f8a7c6b5d4e3f2a1b0c"
NAMES = {
    "/in/github": "github",
    "/in/Shop-2": "Shop-2",
    "/webhooks/stripe": "stripe",
    "/in/stripe": "stripe",
    "/both": "first",
    "/both/": "second",
    TOKEN_PATH: "hidden",
}
PATHS = SourcePaths(NAMES, NAMES)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("/in/github", "github"),
        ("/in/github/", "github"),
        ("/webhooks/stripe/", "stripe"),
        ("/both", "first"),
        ("/both/", "second"),
        ("/in/github//", None),
        ("//in/github", None),
        ("/in/GitHub", None),
        ("/", None),
    ],
)
def test_a_slash_at_the_end_is_the_same_path_unless_it_belongs_to_another_source(path: str, source: str | None) -> None:
    assert PATHS.find(path) == source


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("/in/github//", "double slash; did you mean /in/github"),
        ("//in/github", "double slash; did you mean /in/github"),
        ("/in//github", "double slash; did you mean /in/github"),
        ("/in/GitHub", "upper case; did you mean /in/github"),
        ("/in/shop-2", "did you mean /in/Shop-2"),
        ("/in/github?secret=1", "the query is part of the path; did you mean /in/github"),
        ("/in/github ", "other characters around the path; did you mean /in/github"),
        ("/in/github/hook", "it is below a source's path; did you mean /in/github"),
        ("/in/githb", "did you mean /in/github"),
        ("/github", "did you mean /in/github"),
        ("/hooks/github", "did you mean /in/github"),
        ("/webhooks/strip", "did you mean /webhooks/stripe"),
        (f"{TOKEN_PATH}//", "double slash; did you mean a path of source hidden"),
        ("/in/zzzzzzzz", None),
    ],
)
def test_a_request_meant_for_a_source_is_recognized(path: str, hint: str | None) -> None:
    assert PATHS.is_meant(path)
    found = PATHS.explain(path)
    assert (found or "").endswith(hint or "") if path == "/in/shop-2" else found == hint


@pytest.mark.parametrize(
    "path", ["/", "/wp-login.php", "/.env", "/api/v1/app/github", "/console/github", "/other/strange", "/favicon.ico"]
)
def test_what_scanners_and_other_applications_ask_for_is_not(path: str) -> None:
    assert not PATHS.is_meant(path)


def test_the_guess_for_a_very_long_path_is_bounded() -> None:
    path = "/in/" + "g/" * 50_000
    assert PATHS.is_meant(path)
    assert PATHS.explain(path) in {None, "did you mean /in/github"}
    assert len(mask_path(path)) <= 2_000
    assert len(mask_query("a=b&" * 50_000)) <= 4_000


def test_what_may_be_a_token_is_masked() -> None:
    assert mask_path("/in/github/hook-a.b_c") == "/in/github/hook-a.b_c"
    assert mask_path("/in/9f8a7c/" + "x" * 21) == "/in/.../..."
    assert mask_query("token=abc&next=1&deadbeef01&plain") == "token=...&next=...&...&plain=..."
    assert mask_query("") == ""
