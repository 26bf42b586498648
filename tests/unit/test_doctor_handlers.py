"""Findings about unreachable handlers: unknown sources and impossible types."""

from pathlib import Path

import pytest

from boathook.config import Settings, load
from boathook.domain.errors import ConfigError
from boathook.domain.model import Route
from boathook.handlers.api import Boathook
from boathook.handlers.hooks import Hooks
from boathook.providers import RECIPES
from boathook.server import supervisor
from boathook.service.operating.doctor import CheckStatus, Finding, examine_handlers, examine_loaded

SOURCES = """
[sources.stripe]
secrets = ["whsec_x_of_the_tests"]
[sources.github]
secrets = ["abc"]
[sources.plain]
provider = "hmac"
header = "x-signature"
secrets = ["abcdefgh"]
[sources.typed]
provider = "hmac"
header = "x-signature"
type_path = "kind"
secrets = ["abcdefgh"]
[sources.openai]
secrets = ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"]
[sources.clerk]
secrets = ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"]
[sources.resend]
secrets = ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"]
[sources.broken]
provider = "stripe"
scheme = "none such"
"""


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "boathook.toml").write_text(SOURCES)
    return load(tmp_path / "boathook.toml")


def route(source: str | None, *types: str) -> Route:
    return Route(recipient="handler:x", app="shop", source=source, types=types or ("*",))


def looked(settings: Settings, source: str | None, *types: str) -> list[tuple[str, str]]:
    return [(one.verdict, one.found) for one in examine_handlers(settings, [route(source, *types)])]


@pytest.mark.parametrize(("written", "meant"), [("strpe", "stripe"), ("Stripe", "stripe"), ("git-hub", "github")])
def test_an_unknown_source_warns_and_suggests_a_name(settings: Settings, written: str, meant: str):
    ((verdict, found),) = looked(settings, written)
    assert (verdict, found.endswith(f"did you mean {meant!r}?")) == (CheckStatus.WARN, True)


def test_an_unknown_source_without_a_similar_name_lists_all(settings: Settings):
    (finding,) = examine_handlers(settings, [route("wholly-other")])
    assert (finding.verdict, "stripe, github" in finding.fix) == (CheckStatus.WARN, True)


@pytest.mark.parametrize("source", [None, "stripe", "github", "plain", "broken"])
def test_a_handler_of_every_type_fits_any_source(settings: Settings, source: str | None):
    assert looked(settings, source) == []


def test_a_typed_handler_of_an_untyped_source_fails(settings: Settings):
    ((verdict, found),) = looked(settings, "plain", "order.*", "refund")
    assert verdict == CheckStatus.FAIL
    assert "subscribes to order.*, refund of source 'plain'" in found
    assert looked(settings, "plain", "unknown") == looked(settings, "plain", "order.*", "unk*") == []
    assert looked(settings, "typed", "order.*") == []


@pytest.mark.parametrize(
    ("source", "type", "meant"),
    [
        ("stripe", "paymnt_intent.*", "payment_intent"), ("stripe", "custommer.created", "customer.created"),
        ("github", "pull_requst.opened", "pull_request.opened"),
    ],
)  # fmt: skip
def test_a_misspelt_type_is_a_warning(settings: Settings, source: str, type: str, meant: str):
    ((verdict, found),) = looked(settings, source, type)
    assert (verdict, found.endswith(f"did you mean {meant!r}?")) == (CheckStatus.WARN, True)


@pytest.mark.parametrize(
    "type", ["payment_intent.*", "customer.subscription.updated", "brand_new.thing", "v2.*", "pay*"]
)
def test_known_and_new_types_are_not_reported(settings: Settings, type: str):
    assert looked(settings, "stripe", type) == []


@pytest.mark.parametrize(
    ("source", "type", "meant"),
    [
        ("stripe", "payment_intent.suceeded", "payment_intent.succeeded"), ("stripe", "invoice.payed", "invoice.paid"),
        ("stripe", "invoice.pay", "invoice.paid"),
        ("openai", "response.complete", "response.completed"), ("clerk", "user.updatd", "user.updated"),
        ("clerk", "organizationMembership.creatd", "organizationMembership.created"),
        ("resend", "email.delivred", "email.delivered"),
        ("github", "issues.opend", "issues.opened"), ("github", "pull_request.synchronise", "pull_request.synchronize"),
    ],
)  # fmt: skip
def test_a_misspelt_rest_of_a_type_is_a_warning(settings: Settings, source: str, type: str, meant: str):
    ((verdict, found),) = looked(settings, source, type)
    assert (verdict, found.endswith(f"did you mean {meant!r}?")) == (CheckStatus.WARN, True)


@pytest.mark.parametrize(
    ("source", "type"),
    [("github", "issues"), ("github", "pull_request"), ("stripe", "invoice"), ("stripe", "charge.dispute")],
)
def test_a_type_that_never_stands_alone_fails_with_the_pattern_for_it(settings: Settings, source: str, type: str):
    (finding,) = examine_handlers(settings, [route(source, type)])
    assert (finding.verdict, f'hook.on("{source}", "{type}.*")' in finding.fix) == (CheckStatus.FAIL, True)


@pytest.mark.parametrize(
    "type",
    ["push", "ping", "fork", "workflow_dispatch", "repository_dispatch.mine", "issues.*", "issues.o*", "new_event"],
)
def test_types_of_github_that_may_come_are_not_reported(settings: Settings, type: str):
    assert looked(settings, "github", type) == []


@pytest.mark.parametrize("recipe", [one for one in RECIPES if one.type.known], ids=lambda one: one.name)
def test_known_types_are_unique_and_contain_no_wildcards(recipe):
    assert len(set(recipe.type.known)) == len(recipe.type.known)
    assert not any("." in name or "*" in name for name in recipe.type.known)


def test_start_fails_for_impossible_handlers_only(settings: Settings, monkeypatch: pytest.MonkeyPatch):
    hook = Boathook()
    hook.on("strpe")(lost)
    told: list[dict] = []
    monkeypatch.setattr(supervisor._LOG, "warning", lambda *_args, **more: told.append(more))
    supervisor.check_handlers(settings, Hooks({"shop": hook}))
    assert [one["note"].endswith("did you mean 'stripe'?") for one in told] == [True]
    hook.on("plain", "order.*")(impossible)
    with pytest.raises(ConfigError, match=r"handler:impossible subscribes to order\.\*.*remove the types"):
        supervisor.check_handlers(settings, Hooks({"shop": hook}))


def lost(_event: object) -> None:
    """Handle nothing."""


def impossible(_event: object) -> None:
    """Handle nothing."""


class TestIgnoredVariables:
    """A variable without an effect is named where it is set, and nowhere else."""

    @pytest.fixture
    def hook(self) -> Boathook:
        hook = Boathook("shop")
        hook.ignored_variables({"OLD_TIMEOUT_MS": ("the server has limits of its own", "set limits.head_timeout_s")})
        return hook

    def findings(self, folder: Path, hook: Boathook, text: str = "[shop]\n") -> list[Finding]:
        (folder / "boathook.toml").write_text(text)
        return list(examine_loaded(load(folder / "boathook.toml"), {"shop": hook}))

    def test_a_set_variable_is_a_warning_with_the_reason(self, hook, tmp_path, monkeypatch):
        monkeypatch.setenv("OLD_TIMEOUT_MS", "66000")
        sentence = "the environment variable OLD_TIMEOUT_MS has no effect: the server has limits of its own"
        finding = Finding("shop", CheckStatus.WARN, sentence, "set limits.head_timeout_s")
        assert self.findings(tmp_path, hook) == [finding]

    @pytest.mark.parametrize("value", [None, ""])
    def test_an_unset_or_empty_variable_is_not_reported(self, hook, tmp_path, monkeypatch, value):
        monkeypatch.delenv("OLD_TIMEOUT_MS", raising=False)
        if value is not None:
            monkeypatch.setenv("OLD_TIMEOUT_MS", value)
        assert self.findings(tmp_path, hook) == []

    @pytest.mark.parametrize(
        "text",
        [
            '[shop]\n[shared]\nredis = "env:OLD_TIMEOUT_MS"\n',
            '[shop]\nwaits = [{ms = "env:OLD_TIMEOUT_MS"}]\n',
            '[shop]\n[sources.stripe]\nsecrets = ["env:OLD_TIMEOUT_MS"]\n',
        ],
    )
    def test_a_variable_that_a_setting_refers_to_is_not_reported(self, hook, tmp_path, monkeypatch, text):
        monkeypatch.setenv("OLD_TIMEOUT_MS", "redis://127.0.0.1:6379")
        assert self.findings(tmp_path, hook, text) == []

    def test_a_reference_to_another_variable_does_not_count(self, hook, tmp_path, monkeypatch):
        monkeypatch.setenv("OLD_TIMEOUT_MS", "1")
        text = '[shop]\nOLD_TIMEOUT_MS = "env:OLD_TIMEOUT_MS_2"\n'
        assert len(self.findings(tmp_path, hook, text)) == 1

    def test_the_start_names_it(self, hook, tmp_path, monkeypatch):
        monkeypatch.setenv("OLD_TIMEOUT_MS", "66000")
        notes: list[str] = []
        monkeypatch.setattr(supervisor._LOG, "warning", lambda *_args, **more: notes.append(more["note"]))
        (tmp_path / "boathook.toml").write_text("[shop]\n")
        supervisor.check_settings(load(tmp_path / "boathook.toml"), Hooks({"shop": hook}))
        assert [note for note in notes if "OLD_TIMEOUT_MS" in note] != []
