"""The job store: every accepted job, the workers, and who may run what."""

from collections.abc import Callable

from diffuserve.domain.jobs.job import EndedJob
from diffuserve.events.base import EventBus
from diffuserve.jobs.batches.file_batch_store import FileBatchStore
from diffuserve.jobs.batches.store import BatchStore
from diffuserve.jobs.client_jobs import ClientJobs
from diffuserve.jobs.config import StoreConfig
from diffuserve.jobs.database.connections import Clock, Database
from diffuserve.jobs.database.migrate import migrate
from diffuserve.jobs.database.writer import Writer
from diffuserve.jobs.files.store import FileStore
from diffuserve.jobs.leases.worker_leases import WorkerLeases
from diffuserve.jobs.reads.demand import DemandReader
from diffuserve.jobs.reads.history import History
from diffuserve.jobs.reads.operations import Operations
from diffuserve.jobs.reads.overview import OverviewReader
from diffuserve.jobs.reads.usage_reader import UsageReader
from diffuserve.jobs.reads.virtual_times import VirtualTimes
from diffuserve.jobs.security.audit import AuditStore
from diffuserve.jobs.security.keys import KeyStore
from diffuserve.jobs.security.signing_secrets import SessionMarks, UrlSecrets
from diffuserve.jobs.tasks.housekeeping import Housekeeping
from diffuserve.jobs.webhooks.store import WebhookStore


class JobStore:
    """The store on one database with its single writer, and an interface for each kind of caller.

    `jobs` serves clients, `leases` workers, `operations`, `overview` and `history` operators, `usage` clients
    and operators, `demand` autoscalers, `housekeeping` the reaper and the preemptor; `keys`, `batches`,
    `file_batches`, `files`, `webhooks` and `audit` are named for their tables, `url_secrets` for what they
    sign, and `virtual_times` are the administrator's.
    """

    def __init__(self, url: str, bus: EventBus, config: StoreConfig, clock: Clock | None = None) -> None:
        """Connect to `url`: `sqlite:///PATH` or `postgresql://…`, as SQLAlchemy writes them.

        `clock` gives the time in tests; by default it is the database's own. Raise `InvalidParams` for
        another kind of database.
        """
        self.config = config
        self.database = Database(url, config, clock)
        self._writer = Writer(self.database, bus)
        self.operations = Operations(self.database, self._writer, config)
        self.overview = OverviewReader(self.database, config)
        self.demand = DemandReader(self.database)
        self.history = History(self.database, self._writer)
        self.usage = UsageReader(self.database)
        self.jobs = ClientJobs(self.database, self._writer, self.operations)
        self.leases = WorkerLeases(self.database, self._writer)
        self.housekeeping = Housekeeping(self.database, self._writer, config)
        self.keys = KeyStore(self.database, self._writer)
        self.url_secrets = UrlSecrets(self.database, self._writer)
        self.session_marks = SessionMarks(self.database, self._writer)
        self.batches = BatchStore(self.database, self._writer)
        self.file_batches = FileBatchStore(self.database, self._writer)
        self.files = FileStore(self.database, self._writer)
        self.webhooks = WebhookStore(self.database, self._writer)
        self.audit = AuditStore(self.database, self._writer)
        self.virtual_times = VirtualTimes(self.database, self._writer, config)

    def on_ended(self, *listeners: Callable[[EndedJob], None]) -> None:
        """Call each of `listeners` with every job that becomes final through this process."""

        def tell(job: EndedJob) -> None:
            for listener in listeners:
                listener(job)

        self._writer.on_ended = tell

    def on_put_back(self, requeued: Callable[[str], None], expired: Callable[[int], None]) -> None:
        """Call `requeued` with the cause of each requeued job, and `expired` with numbers of expired leases.

        Both hear of what is done through this process.
        """
        self._writer.on_requeued, self._writer.on_expired = requeued, expired

    async def open(self) -> None:
        """Bring the schema up to date and start the writer."""
        await migrate(self.database)
        self._writer.start()

    async def close(self) -> None:
        """Write what was handed in, then close all connections."""
        await self._writer.close()
        await self.database.close()
