"""The sources of a gateway: as configured and saved at its start, then as they are stored in PostgreSQL."""

from typing import Self

import msgspec

from boathook.config import Settings
from boathook.db import replies, source_secrets, stored_sources
from boathook.db.live_settings import LiveSettings
from boathook.domain.rate_leases import LeaseTokens
from boathook.ingest.handshake_secrets import HandshakeSecrets
from boathook.ingest.intake import Intake
from boathook.ingest.pipeline import IngestPipeline
from boathook.ingest.reply_waiter import ReplyWaiter
from boathook.ingest.secret_reloader import SecretReloader
from boathook.ingest.secrets_cache import SecretsCache
from boathook.ingest.source_rate import RateLeaser, SourceRate
from boathook.ingest.sources import CompiledSources, dedup_windows_by_source, follow_sources, report_dedup_windows
from boathook.ingest.stored_sources_file import read_stored_sources, save_stored_sources
from boathook.observability.log import get_logger
from boathook.server.background import BackgroundTasks
from boathook.server.gateway_database import GatewayDatabase

_LOG = get_logger("server")


class GatewaySources(msgspec.Struct, frozen=True):
    """The sources of a gateway, with what they are compiled from."""

    live: LiveSettings
    added: SecretsCache
    compiled: CompiledSources


def load_sources(settings: Settings) -> GatewaySources:
    """Return the configured sources, and the stored ones that a gateway of this host saved last.

    Raises:
        ConfigError: the settings of a configured source are wrong.
    """
    live, added = LiveSettings(settings), SecretsCache(settings)
    saved = read_stored_sources(settings.server.data_dir)
    if saved is not None:
        live.set_rows(saved)
    return GatewaySources(live, added, CompiledSources(live, added))


class SourceFollower:
    """Serves the sources as they are stored, leases their rates, and saves what a start without PostgreSQL needs.

    Args:
        settings: the settings.
        sources: the sources.
        database: where sources and secrets are stored.
        intake: remembers the keys of events for as long as the sources say.
        pipeline: serves the paths of the sources.
        lease_tokens: leases tokens of their rates.
        reply_waiter: waits for handlers if the senders of a source do.
    """

    def __init__(
        self,
        settings: Settings,
        sources: GatewaySources,
        database: GatewayDatabase,
        *,
        intake: Intake,
        pipeline: IngestPipeline,
        lease_tokens: LeaseTokens,
        reply_waiter: ReplyWaiter,
    ) -> None:
        self._settings = settings
        self._sources = sources
        self._database = database
        self._intake = intake
        self._pipeline = pipeline
        self._reply_waiter = reply_waiter
        self._removed: set[str] = set()
        """Removed sources whose handshake secrets have not been deleted yet."""
        self._rate_leaser = RateLeaser(
            self._rates, lease_tokens, database.count_gateways, gateways=settings.server.gateways
        )
        self._secret_reloader = SecretReloader(
            sources.live.current,
            sources.compiled.by_name.values(),
            sources.added,
            lambda: database.read_secrets(sources.live),
            on_read=self._update_sources,
            save=self._save_sources,
        )
        self._tasks = BackgroundTasks(
            {
                "secrets:reload": self._secret_reloader.run,
                "secrets:listen": self._listen,
                "rates:lease": self._rate_leaser.run,
            }
        )
        self._is_started = self._has_reply_tasks = False
        self._follow_dedup_rules()
        self._set_sources()

    async def __aenter__(self) -> Self:
        if self._database.connected.is_set():
            # Before the first request: the secrets file may be older than a removal.
            await self._secret_reloader.ensure_fresh()
        await self._tasks.__aenter__()
        self._is_started = True
        self._follow_replies()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._tasks.__aexit__()

    def _rates(self) -> list[SourceRate]:
        return [compiled.rate for compiled in self._sources.compiled.by_name.values() if compiled.rate is not None]

    def _update_sources(self, has_new_secrets: bool) -> None:
        """Serve the stored sources as they are now, from the next request on."""
        sources = self._sources
        if not sources.compiled.is_outdated(has_new_secrets=has_new_secrets):
            return
        former = set(sources.compiled.by_name)
        sources.compiled.update()
        self._removed |= former - {row.name for row in sources.live.rows} - sources.live.current.sources.keys()
        self._secret_reloader.set_sources(sources.live.current, sources.compiled.by_name.values())
        self._follow_dedup_rules()
        self._set_sources()
        self._rate_leaser.follow_sources()
        self._follow_replies()
        self._secret_reloader.save_soon()
        _LOG.info("sources_changed", sources=len(sources.compiled.by_name), stored=len(sources.live.current.stored))

    def _set_sources(self) -> None:
        compiled = self._sources.compiled
        self._pipeline.set_sources(compiled.by_path, compiled.unavailable, has_all_sources=compiled.is_known)

    def _save_sources(self) -> None:
        """Save what a start without PostgreSQL needs, and delete handshake secrets of removed sources; in a thread."""
        sources, data_dir = self._sources, self._settings.server.data_dir
        sources.added.save()
        save_stored_sources(data_dir, sources.live.rows)
        while self._removed:
            name = self._removed.pop()
            if name not in sources.live.current.sources:
                HandshakeSecrets(data_dir).forget(name)

    def _follow_dedup_rules(self) -> None:
        """Remember keys, and report for how long, as the settings of the current sources say."""
        settings = self._sources.live.current
        follow_sources(self._database.events, settings)
        self._intake.set_dedup_windows(dedup_windows_by_source(settings))
        report_dedup_windows(settings)

    def _follow_replies(self) -> None:
        """Begin to read the replies of handlers once there is a source whose senders wait for them."""
        has_inline = any(compiled.inline for compiled in self._sources.compiled.by_name.values())
        if self._is_started and has_inline and not self._has_reply_tasks:
            self._has_reply_tasks = True
            self._tasks.start(self._listen_for_replies(), "replies:listen")
            self._tasks.start(self._reply_waiter.run(), "replies:wait")

    async def _listen(self) -> None:
        """Follow what other processes note in PostgreSQL, once it is reached."""
        await self._database.connected.wait()
        database = self._database.require_database()
        database.monitor.on_reconnect(self._intake.clear_dedup_cache)
        await database.listen(source_secrets.CHANNEL, self._secret_reloader.on_notification)
        await database.listen(stored_sources.CHANNEL, self._secret_reloader.on_notification)
        self._secret_reloader.on_notification("")

    async def _listen_for_replies(self) -> None:
        await self._database.connected.wait()
        await self._database.require_database().listen(replies.CHANNEL, self._reply_waiter.on_notification)
