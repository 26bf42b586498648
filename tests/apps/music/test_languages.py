"""The texts of commands, alerts and the API: in the language of the settings, else of the request."""

from collections.abc import AsyncIterator, Iterator

import pytest

from boathook.config import load
from boathook.domain.errors import ConfigError
from boathook.server.loading import bound, load_hooks, migrations_of, with_apps
from boathook.server.supervisor import prepare_database
from boathook_music import alerts, tracks
from boathook_music.app import hook, languages
from boathook_music.lookup import LookupFailed, ask_now
from boathook_music.tracks import NewTrack
from tests.apps.music.server import MusicServer, started


@pytest.fixture
async def russian(pg_url, tmp_path) -> AsyncIterator[None]:
    """The app in Russian, bound to this test's database."""
    file = tmp_path / "boathook.toml"
    file.write_text(
        f'[database]\nurl = "{pg_url}"\n[apps]\nload = ["music"]\n[music]\nprovider = "unsigned"\nlanguage = "ru"\n'
    )
    settings, apps = with_apps(load(file))
    await prepare_database(settings, load_hooks(settings), migrations_of(apps))
    async with bound(settings, apps):
        yield
    # The texts of other tests are English.
    hook.bind(None, None)


async def test_the_setting_words_alerts_refusals_and_failures(russian: None):
    async with hook.transaction() as tx:
        (reading,) = await alerts.find_overdue(tx)
        await alerts.fire_unknown_stage(tx)
        fired = await tx.fetchval("select details::text from boathook.alert_signal")
    assert reading.details["text"] == "песни без колбэка"
    assert "неизвестной стадией" in fired
    assert tracks.problem_of(NewTrack(task_id="")) == (
        "task_id: '' не может быть id задачи; нужны от 1 до 200 печатных символов"
    )
    assert (tracks.problem_of(NewTrack(task_id="t", application="a b")) or "").startswith("application: 'a b' не может")
    with pytest.raises(LookupFailed, match="нужен ключ API реселлера"):
        await ask_now("t")
    with languages.using("en"):
        assert languages.gettext("there is no such track") == "такой песни нет", "the setting prevails"


@pytest.fixture(scope="module")
def russian_server(tmp_path_factory, admin_url, pg_template) -> Iterator[MusicServer]:
    with started(tmp_path_factory.mktemp("ru"), admin_url, pg_template, music='language = "ru"\n') as running:
        yield running


def test_commands_speak_the_language_of_the_settings(russian_server: MusicServer):
    ended = russian_server.cli("music", "tracks", "show", "absent", check=False)
    assert "песни 'absent' нет" in ended.stderr
    assert russian_server.cli("music", "tracks", "add", "t1").stdout == "песня t1 добавлена: pending\n"


@pytest.mark.parametrize(
    ("wishes", "text"),
    [
        ("ru", "такой песни нет"),
        ("de, ru;q=0.5", "такой песни нет"),
        ("en", "there is no such track"),
        ("", "there is no such track"),
    ],
)
def test_the_api_answers_in_the_language_of_the_request(server: MusicServer, wishes: str, text: str):
    assert server.api("GET", "/tracks/absent", language=wishes).json() == {
        "error": {"code": "not_found", "message": text}
    }


def test_a_refused_field_is_named_in_the_language_of_the_request(server: MusicServer):
    response = server.api("POST", "/tracks", language="ru", json={"task_id": "t", "title": "x" * 501})
    text = "title: не больше 500 символов, без NUL"
    assert (response.status_code, response.json()["error"]["message"]) == (400, text)
    assert response.json()["error"]["field"] == "title"
    assert server.api("GET", "/tracks?limit=0", language="ru").json()["error"]["message"].startswith("limit: ")


def test_an_unknown_language_is_refused(tmp_path):
    file = tmp_path / "boathook.toml"
    file.write_text('[apps]\nload = ["music"]\n[music]\nprovider = "unsigned"\nlanguage = "de"\n')
    with pytest.raises(ConfigError, match="language"):
        with_apps(load(file))
