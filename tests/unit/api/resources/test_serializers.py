"""Resources survive the wire: the client reads back what the API has written."""

from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any, cast

import orjson
import pytest

from diffuserve.api.files.urls import FileUrls
from diffuserve.api.following.watched_jobs import WatchedJobs
from diffuserve.api.resources.model_resources import model_resource
from diffuserve.api.resources.serializers import (
    JobSerializer,
    batch_resource,
    delivery_resource,
    event_resource,
    file_resource,
    filter_resource,
    live_event_resource,
    output_of,
    page_of,
    webhook_endpoint_resource,
    worker_resource,
)
from diffuserve.client.codec import decode
from diffuserve.domain.jobs.batch import Batch
from diffuserve.domain.jobs.input_file import InputFile
from diffuserve.domain.jobs.job import (
    Artifact,
    Band,
    Job,
    JobError,
    JobEvent,
    JobResult,
    JobStatus,
    Phase,
    Progress,
    QueueEstimate,
)
from diffuserve.domain.jobs.progress_report import WatchedReports
from diffuserve.domain.jobs.prompt import PromptRecord
from diffuserve.domain.jobs.webhook import Delivery, DeliveryStatus, WebhookEndpoint, WebhookEvent
from diffuserve.domain.models.tiers import Tiers
from diffuserve.domain.resource_base import Resource
from diffuserve.domain.resources.adapter import AdapterList, AdapterResource, DeletedAdapter
from diffuserve.domain.resources.batch import BatchPage
from diffuserve.domain.resources.estimate import EstimateResource
from diffuserve.domain.resources.file import DeletedFile, FilePage
from diffuserve.domain.resources.job import JobPage, ProgressResource
from diffuserve.domain.resources.model import ModelList, ModelSafetyResource
from diffuserve.domain.resources.plan import PlanResource
from diffuserve.domain.resources.scale import LeavingResource, ScaleResource
from diffuserve.domain.resources.session import SessionResource
from diffuserve.domain.resources.webhook import (
    DeletedSubject,
    DeliveryPage,
    OpenAISubject,
    WebhookEndpointPage,
    WebhookMessage,
    WebhookSecretResource,
)
from diffuserve.domain.resources.worker import WorkerList
from diffuserve.domain.safety import Action, FilterInfo, Finding, Verdict
from diffuserve.domain.unit_cost import CostReport, measured_costs
from diffuserve.domain.workers.model_orders import KeptOrders, ModelOrder
from diffuserve.domain.workers.peers import PeerAddress, PeerAdvice, Share
from diffuserve.domain.workers.readiness import ModelStatus
from diffuserve.domain.workers.worker import (
    ClaimedLeases,
    Lease,
    LeasedFile,
    LeasedFiles,
    StoredFile,
    UploadUrl,
    Worker,
    WorkerReport,
    WorkerState,
)
from diffuserve.events.memory import MemoryEventBus
from diffuserve.jobs.config import StoreConfig
from diffuserve.jobs.store import JobStore
from support.hand_worker import HAND_SPEC
from support.operations import history, operations_of
from support.resources import make_usage

LEARNED_SPEC = replace(HAND_SPEC, learned_min_size=96, learned_max_size=256)
API = "https://api.test"
FILTER = FilterInfo("policy", "house 7", {"gambling": 0.5})
VERDICT = Verdict((Finding("spoilers", Action.FLAG, "term", 0.75, detail="quotes the prompt"),))
THUMBNAIL, IMAGE = (
    Artifact(
        name=f"{role}.png",
        content_type="image/png",
        size_bytes=70,
        sha256="ab" * 32,
        width=64,
        height=32,
        role=role,
        seed=7,
    )
    for role in ("thumbnail", "image")
)
QUEUED = Job(
    id="job_1",
    tenant_id="ada",
    kind="image.generate",
    model="hand",
    status=JobStatus.QUEUED,
    band=Band.BATCH,
    input={"prompt": "a cat", "num_inference_steps": 4},
    metadata={"order": [1, None, "ä"]},
    cost_seconds=1.0,
    step_tokens=64,
    attempt=0,
    lease_token=0,
    version=1,
    created_at=1_767_323_045.25,
    batch_id="batch_1",
    custom_id="item-1",
    prompt=PromptRecord(original="a  cat", verdict=VERDICT, filter=FILTER, expansion="expanded"),
)
RUNNING = replace(
    QUEUED,
    status=JobStatus.RUNNING,
    attempt=1,
    phase=Phase.DENOISE,
    progress=Progress(1, 4),
    started_at=1_767_323_046.0,
)
SUCCEEDED = replace(
    RUNNING,
    status=JobStatus.SUCCEEDED,
    finished_at=1_767_323_047.0,
    result=JobResult(
        artifacts=(THUMBNAIL, IMAGE),
        input={"prompt": "a cat"},
        timings={"denoise": 0.5},
        warnings=("too dark",),
        safety={"image": {"filter": asdict(FILTER)}},
    ),
)
FAILED = replace(RUNNING, status=JobStatus.FAILED, error=JobError("broken", "it broke", True, {"image": {}}))
BATCH = Batch(
    id="batch_1",
    tenant_id="ada",
    metadata={"a": 1},
    num_items=3,
    num_stored=3,
    created_at=1_767_323_045.0,
    finished_at=None,
    is_canceled=False,
    counts={JobStatus.QUEUED: 2, JobStatus.FAILED: 1},
)
EVENT = JobEvent("job_1", 1, "queued", {"band": "batch"}, 1_767_323_045.0)
ENDPOINT = WebhookEndpoint(
    id="end_1", tenant_id="ada", url="https://hooks.test/", created_at=0.0, disabled_at=1.0
)
DELIVERY = Delivery(
    id="msg_1",
    endpoint_id="end_1",
    tenant_id="ada",
    host="hooks.example",
    type=WebhookEvent.JOB_SUCCEEDED,
    subject_id="job_1",
    base_url=API,
    status=DeliveryStatus.FAILED,
    num_attempts=2,
    created_at=1_767_323_045.0,
    last_attempt_at=1_767_323_050.0,
    last_status=503,
    last_error="responded with 503",
)
WORKER = Worker(
    id="worker_1",
    name="by hand",
    state=WorkerState.READY,
    labels={"zone": "b"},
    models=("hand",),
    report=WorkerReport(state=WorkerState.READY, resident_models=("hand",), image_filter=FILTER),
    registered_at=1_767_323_045.0,
    heartbeat_at=1_767_323_046.0,
    price_per_hour=1.5,
)
LEASE = Lease(
    job_id="job_1",
    lease_token=1,
    kind="image.generate",
    model="hand",
    input={},
    attempt=1,
    lease_seconds=30.0,
)


class Estimates:
    """Part of a job store that estimates every queued job's place."""

    config = StoreConfig()

    @property
    def jobs(self) -> "Estimates":
        return self

    async def estimate(self, job: Job) -> QueueEstimate | None:
        return QueueEstimate(3, 4.5, 9.0) if job.status is JobStatus.QUEUED else None


class PlainUrls:
    """URLs that name a file and never change."""

    async def url(self, job_id: str, lease_token: int, name: str, base_url: str, sha256: str = "") -> str:
        return f"{base_url}/files/{job_id}/{lease_token}/{name}"

    def tag(self) -> str:
        return "1"


def make_serializer(bus: MemoryEventBus) -> JobSerializer:
    return JobSerializer(cast(JobStore, Estimates()), bus, WatchedJobs(bus).look, cast(FileUrls, PlainUrls()))


@pytest.fixture
def serializer() -> JobSerializer:
    return make_serializer(MemoryEventBus())


FILE = InputFile(
    id="file-0",
    tenant_id="ada",
    filename="a.png",
    size_bytes=3,
    width=64,
    height=48,
    sha256="ab",
    verdict=Verdict((Finding("nsfw", Action.BLUR, "a filter", 0.5),)),
    created_at=1.0,
    expires_at=2.0,
)


ADAPTER = AdapterResource(
    name="ink",
    is_public=True,
    digest="ab" * 32,
    origin="store",
    bytes=3,
    families=("flux",),
    model=None,
    models=("tiny-flux",),
    rank=4,
    num_layers=2,
    created_at=1,
)


async def all_resources(serializer: JobSerializer) -> list[Resource]:
    """Return at least one resource of every kind that the API writes."""
    jobs = [await serializer.job(job, API) for job in (QUEUED, RUNNING, SUCCEEDED, FAILED)]
    batch, delivery = batch_resource(BATCH, API), delivery_resource(DELIVERY)
    safety = ModelSafetyResource(
        prompt=filter_resource(FILTER), image=(filter_resource(FILTER), filter_resource(None))
    )
    deleted = DeletedSubject(id="job_1", status="succeeded")
    messages = [
        WebhookMessage(
            id="msg_1",
            type=WebhookEvent.JOB_SUCCEEDED,
            created_at=1,
            timestamp=batch.created_at,
            data=subject,
        )
        for subject in (jobs[2], batch, deleted, OpenAISubject(id="video_1"))
    ]
    return [
        *jobs,
        *messages,
        page_of(JobPage, jobs, has_more=True),
        page_of(BatchPage, [batch], has_more=False),
        page_of(DeliveryPage, [delivery], has_more=False),
        await serializer.batch_result(SUCCEEDED, API),
        await serializer.batch_result(FAILED, API),
        event_resource(EVENT),
        live_event_resource("job_1", {"type": "progress", "step": 1}),
        page_of(WebhookEndpointPage, [webhook_endpoint_resource(ENDPOINT)], has_more=True),
        WebhookSecretResource(secret="whsec_x"),
        ModelList(data=(model_resource(LEARNED_SPEC, ModelStatus.READY, safety, Tiers(steps=(4,))),)),
        WorkerList(data=(worker_resource(WORKER),)),
        operations_of(worker_resource(WORKER)),
        history(),
        SessionResource(is_open=False, role="tenant", tenant_id="ada", csrf_token="x"),
        ClaimedLeases(leases=(LEASE,)),
        WatchedReports(watched=("job_1",)),
        PeerAdvice((PeerAddress("10.0.0.7", 6881),), Share(1, 2, 3)),
        StoredFile(name="0.png", size_bytes=3, sha256="ab"),
        UploadUrl(url=None),
        LeasedFiles(files=(LeasedFile(id="file-0", size_bytes=3, sha256="ab"),)),
        page_of(FilePage, [file_resource(FILE)], has_more=False),
        DeletedFile(id=FILE.id),
        AdapterList(data=(ADAPTER,)),
        DeletedAdapter(name="ink"),
        PlanResource(name="slow", priorities=(Band.STANDARD, Band.BATCH)),
        ScaleResource(
            pool="tiny",
            workers=3,
            for_work=3,
            for_rate=2,
            floor=1,
            predicted=0,
            num_live=2,
            num_on_demand=2,
        ),
        LeavingResource(leaves=True),
        EstimateResource(
            model="tiny",
            width=64,
            height=64,
            cost_seconds=1.5,
            eta_s_low=1.0,
            eta_s_high=2.0,
            warnings=("small",),
        ),
        KeptOrders(data=(ModelOrder(id="order_1", model="tiny-sd"),)),
        CostReport(costs=tuple(measured_costs(make_usage())), usage=make_usage()),
        deleted,
    ]


async def test_the_client_reads_every_resource_as_the_api_wrote_it(serializer: JobSerializer) -> None:
    for resource in await all_resources(serializer):
        assert decode(type(resource), orjson.dumps(resource)) == resource


async def test_the_client_ignores_fields_of_a_newer_server(serializer: JobSerializer) -> None:
    for resource in await all_resources(serializer):
        extended = _extended(orjson.loads(orjson.dumps(resource)))
        assert decode(type(resource), orjson.dumps(extended)) == resource


async def test_every_resource_of_the_domain_is_tested_here(serializer: JobSerializer) -> None:
    tested = {kind for resource in await all_resources(serializer) for kind in _kinds_in(resource)}
    written = {kind for kind in _leaves(Resource) if kind.__module__.startswith("diffuserve.domain.")}
    assert {kind.__name__ for kind in written - tested} == set()


async def test_a_job_has_its_place_in_the_queue_and_the_urls_of_its_files(serializer: JobSerializer) -> None:
    queued, succeeded = await serializer.job(QUEUED, API), await serializer.job(SUCCEEDED, API)
    assert queued.queue is not None
    assert (queued.queue.ahead, queued.queue.eta_s_high) == (3, 9.0)
    assert queued.urls.cancel == f"{API}/v1/jobs/job_1/cancel"
    assert queued.created_at == "2026-01-02T03:04:05.250Z"
    assert succeeded.result is not None
    assert [image.url for image in succeeded.result.images] == [f"{API}/files/job_1/0/image.png"]
    assert (succeeded.queue, succeeded.progress.fraction) == (None, 1.0)


async def test_a_listed_job_has_no_place_in_the_queue(serializer: JobSerializer) -> None:
    assert (await serializer.listed_job(QUEUED, API)).queue is None


async def test_findings_are_written_without_the_detail_that_quotes_the_prompt(
    serializer: JobSerializer,
) -> None:
    assert b"quotes the prompt" not in orjson.dumps(await serializer.job(QUEUED, API))


async def test_live_progress_replaces_the_stored_one(serializer: JobSerializer) -> None:
    bus = MemoryEventBus()
    live = {"type": "progress", "phase": "decode", "step": 4, "total": 4, "fraction": 1.0}
    bus.publish("job:job_1", live)
    serializer = make_serializer(bus)
    stored, current = serializer.etag(QUEUED), await serializer.job(RUNNING, API)
    assert (current.phase, current.progress.step) == (Phase.DECODE, 4)
    assert "decode" in stored


async def test_a_clip_tells_its_decoded_frames_beside_its_steps() -> None:
    bus = MemoryEventBus()
    live = {"type": "progress", "phase": "decode", "step": 4, "total": 4, "fraction": 1.0, "frames": 5}
    serializer = make_serializer(bus)
    asked = {"num_inference_steps": 4, "num_frames": 17, "num_images": 2}
    clip = replace(RUNNING, kind="video.generate", input=asked, progress=None)
    waiting, before = (await serializer.job(clip, API)).progress, serializer.etag(clip)
    bus.publish("job:job_1", live)
    current, done = await serializer.job(clip, API), replace(clip, status=JobStatus.SUCCEEDED)
    assert (waiting.step, waiting.total, waiting.frames, waiting.num_frames) == (0, 4, 0, 34)
    assert current.progress == ProgressResource(step=4, total=4, fraction=1.0, frames=5, num_frames=34)
    assert (await serializer.job(done, API)).progress.frames == 34
    bus.publish("job:job_1", live | {"frames": 9})
    assert len({before, serializer.etag(clip), serializer.etag(replace(clip, version=99))}) == 3


def test_an_image_is_found_by_its_index_and_a_thumbnail_is_none() -> None:
    assert output_of(SUCCEEDED, 0) == IMAGE
    assert output_of(SUCCEEDED, 1) is None
    assert output_of(QUEUED, 0) is None


def _extended(value: Any) -> Any:
    """Add an unknown field to every object that a dataclass describes."""
    if isinstance(value, list):
        return [_extended(element) for element in value]
    if not isinstance(value, dict):
        return value
    free = _FREE_FIELDS | {"data"} if "seq" in value else _FREE_FIELDS  # an event's content is free
    extended = {name: part if name in free else _extended(part) for name, part in value.items()}
    return extended | {"field_of_a_newer_server": 1}


_FREE_FIELDS = frozenset(
    {
        "input",
        "metadata",
        "qualities",
        "safety",
        "timings",
        "counts",
        "labels",
        "thresholds",
        "defaults",
        "limits",
        "image_filter",
        "num_workers",
        "withdrawn_models",
        "per_minute",
        "device_seconds",
    }
)


def _kinds_in(value: object) -> Iterator[type[Resource]]:
    if isinstance(value, Resource):
        yield type(value)
        for part in vars(value).values():
            yield from _kinds_in(part)
    elif isinstance(value, tuple):
        for part in value:
            yield from _kinds_in(part)


def _leaves(kind: type[Resource]) -> Iterator[type[Resource]]:
    """Yield the classes below `kind` from which no other derives."""
    for derived in kind.__subclasses__():
        if derived.__subclasses__():
            yield from _leaves(derived)
        else:
            yield derived
