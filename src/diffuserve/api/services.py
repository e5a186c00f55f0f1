"""The parts of an application, put together from its backends and its configuration."""

from dataclasses import dataclass, field, is_dataclass, replace
from typing import Any, TypeVar, get_type_hints

from diffuserve.api.a1111.chosen_models import ChosenModels
from diffuserve.api.auth.access import Authenticator
from diffuserve.api.auth.browser_guard import OwnAddresses
from diffuserve.api.auth.open_waits import OpenWaits
from diffuserve.api.auth.quota import RequestRates
from diffuserve.api.auth.revocation import RevocationWatch
from diffuserve.api.auth.sessions import Sessions
from diffuserve.api.auth.signatures import Signatures
from diffuserve.api.config import ApiConfig
from diffuserve.api.door.upload import BatchUploads
from diffuserve.api.fal.results import FORM as FAL_FORM
from diffuserve.api.fal.results import FalSerializer
from diffuserve.api.files.adapter_intake import AdapterIntake
from diffuserve.api.files.fetch import ImageFetcher
from diffuserve.api.files.intake import FileIntake
from diffuserve.api.files.job_files import JobFiles
from diffuserve.api.files.pixel_budget import PixelBudget
from diffuserve.api.files.signing import UrlSigner
from diffuserve.api.files.urls import FileUrls, MediaOrigins
from diffuserve.api.following.job_log import JobLog
from diffuserve.api.following.job_metrics import JobMetrics
from diffuserve.api.following.job_watcher import JobWatcher
from diffuserve.api.following.last_previews import LastPreviews
from diffuserve.api.following.watched_jobs import WatchedJobs
from diffuserve.api.http.background_tasks import BackgroundTasks
from diffuserve.api.operators.feed import OverviewFeed
from diffuserve.api.operators.recorder import HistoryRecorder
from diffuserve.api.operators.snapshots import Snapshots
from diffuserve.api.operators.store_gauges import StoreGauges
from diffuserve.api.outbound.address_policy import AddressPolicy
from diffuserve.api.reads.adapter_names import AdapterNames, Adapters
from diffuserve.api.reads.catalog import Catalog
from diffuserve.api.reads.pool_sizes import PoolSizes
from diffuserve.api.reads.worker_polls import WorkerPolls
from diffuserve.api.resources.message_forms import MessageForms
from diffuserve.api.resources.serializers import JobSerializer
from diffuserve.api.submit.prompt_processor import PromptProcessor
from diffuserve.events.base import EventBus
from diffuserve.jobs.store import JobStore
from diffuserve.quotas.base import Quotas
from diffuserve.quotas.local import LocalQuotas
from diffuserve.safety.processes.intake_pool import IntakePool
from diffuserve.storage.base import ArtifactStore
from diffuserve.storage.watch import StorageWatch
from diffuserve.telemetry.metrics import ControlMetrics
from diffuserve.telemetry.tracing import OFF, Tracer
from diffuserve.web.pages import Pages

Part = TypeVar("Part")


@dataclass(frozen=True)
class Services:
    """The parts of one application, one of each type; routes name those that they use."""

    config: ApiConfig
    store: JobStore
    artifacts: ArtifactStore
    storage: StorageWatch
    bus: EventBus
    quotas: Quotas
    rates: RequestRates
    metrics: ControlMetrics
    tracer: Tracer
    store_gauges: StoreGauges
    pool_sizes: PoolSizes
    authenticator: Authenticator
    own_addresses: OwnAddresses
    sessions: Sessions
    revocations: RevocationWatch
    catalog: Catalog
    adapters: AdapterNames
    adapter_intake: AdapterIntake
    watched_jobs: WatchedJobs
    job_watcher: JobWatcher
    previews: LastPreviews
    worker_polls: WorkerPolls
    snapshots: Snapshots
    overview_feed: OverviewFeed
    history_recorder: HistoryRecorder
    url_signer: UrlSigner
    file_urls: FileUrls
    pages: Pages
    serializer: JobSerializer
    message_forms: MessageForms
    job_metrics: JobMetrics
    job_log: JobLog
    address_policy: AddressPolicy
    prompts: PromptProcessor
    waits: OpenWaits
    chosen_models: ChosenModels
    batch_uploads: BatchUploads
    file_intake: FileIntake
    image_fetcher: ImageFetcher
    background_tasks: BackgroundTasks
    _made: dict[type[Any], Any] = field(default_factory=dict, init=False, repr=False)

    def part(self, kind: type[Part]) -> Part:
        """Return the part of this type, or a dataclass of this type whose fields are such parts."""
        if kind not in self._made:
            own = {hint: name for name, hint in get_type_hints(type(self)).items()}
            self._made[kind] = getattr(self, own[kind]) if kind in own else self._put_together(kind)
        made: Part = self._made[kind]
        return made

    def _put_together(self, kind: type[Part]) -> Part:
        assert is_dataclass(kind), f"no application has a part of the type {kind.__name__}"
        return kind(**{name: self.part(hint) for name, hint in get_type_hints(kind).items()})

    @classmethod
    def build(  # noqa: PLR0913 (what an application is made of)
        cls,
        store: JobStore,
        artifacts: ArtifactStore,
        bus: EventBus,
        config: ApiConfig,
        quotas: Quotas | None = None,
        prompts: PromptProcessor | None = None,
        images: IntakePool | None = None,
        tracer: Tracer = OFF,
        adapters: Adapters | None = None,
    ) -> "Services":
        """Build every service from the backends; the defaults are as in `create_app`."""
        metrics = ControlMetrics()
        job_log, storage = JobLog(store.operations), StorageWatch(artifacts)
        store.on_ended(metrics.count_final_job, job_log.note)
        store.on_put_back(metrics.count_requeue, metrics.leases_expired.inc)
        signatures = Signatures(store)
        url_signer = UrlSigner(signatures, config.result_url_seconds)
        file_urls = FileUrls(artifacts, url_signer, config.public_base_url)
        catalog = Catalog(
            store, config.default_model, config.tiers, config.lets_sounds_out, config.model_aliases
        )
        adapter_names = AdapterNames(adapters, catalog.workers, config.own_adapters, config.bundled_adapters)
        pool = images or IntakePool()
        snapshots = Snapshots(store, bus)
        authenticator = Authenticator(store, without_keys=not config.auth)
        own = OwnAddresses.of(config.own_hosts, config.public_api_url, config.allowed_origins)
        quotas = quotas or LocalQuotas()
        watched_jobs = WatchedJobs(bus)
        serializer = JobSerializer(store, bus, watched_jobs.look, file_urls)
        fal = FalSerializer(store, bus, serializer, JobFiles(store, artifacts, file_urls))
        return cls(
            config=config,
            store=store,
            artifacts=artifacts,
            storage=storage,
            bus=bus,
            quotas=quotas,
            rates=RequestRates(catalog, quotas, own=LocalQuotas()),
            metrics=metrics,
            tracer=tracer,
            store_gauges=StoreGauges(store, bus, storage, metrics),
            pool_sizes=PoolSizes(store, config.scale),
            authenticator=authenticator,
            own_addresses=own,
            sessions=Sessions(
                authenticator, signatures, store.session_marks, quotas, own, config.session_seconds
            ),
            revocations=RevocationWatch(authenticator),
            catalog=catalog,
            adapters=adapter_names,
            adapter_intake=AdapterIntake(config, catalog, adapter_names),
            watched_jobs=watched_jobs,
            job_watcher=JobWatcher(store, bus, watched_jobs, config.poll_seconds),
            previews=LastPreviews(),
            worker_polls=WorkerPolls(store, config.poll_seconds),
            snapshots=snapshots,
            overview_feed=OverviewFeed(snapshots),
            history_recorder=HistoryRecorder(store.history, snapshots),
            url_signer=url_signer,
            file_urls=file_urls,
            pages=Pages(MediaOrigins(file_urls, config.public_api_url).get),
            serializer=serializer,
            message_forms=MessageForms({FAL_FORM: fal.message}),
            job_metrics=JobMetrics(store, metrics),
            job_log=job_log,
            address_policy=AddressPolicy(config.webhook_allowed_networks, config.webhook_allowed_ports),
            prompts=replace(prompts or PromptProcessor(), on_verdict=metrics.observe_prompt_verdict),
            waits=OpenWaits(),
            chosen_models=ChosenModels(bus),
            batch_uploads=BatchUploads(config),
            file_intake=FileIntake(pool, store, artifacts, catalog, config, metrics, PixelBudget(quotas)),
            image_fetcher=ImageFetcher(config),
            background_tasks=BackgroundTasks(),
        )
