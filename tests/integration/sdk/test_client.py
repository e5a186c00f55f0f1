"""`diffuserve.Client` with a real server, and through a proxy that injects faults."""

import asyncio
import hashlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import diffuserve
from diffuserve.domain.errors import (
    InvalidParams,
    JobNotDone,
    JobNotFound,
    ServerUnavailable,
    Unauthorized,
)
from diffuserve.domain.jobs.job import JobStatus
from diffuserve.domain.tenant import Role
from diffuserve.settings import Settings
from diffuserve.wiring.control import open_store
from support.faulty_proxy import CutRequest, CutResponse, FaultyProxy, Respond
from support.image_files import png
from support.server_thread import ServerThread

FAULTS = [CutRequest(), CutResponse(), Respond(503)]


@pytest.fixture
def client(server: ServerThread, monkeypatch: pytest.MonkeyPatch) -> Iterator[diffuserve.Client]:
    monkeypatch.setenv("DIFFUSERVE_SERVER", server.address)
    with diffuserve.Client() as client:
        yield client


def test_generate_returns_the_images(client: diffuserve.Client, tmp_path: Path) -> None:
    first, second = client.generate("a star", seed=7, num_images=2, metadata={"order": "1"})
    assert (first.artifact.seed, second.artifact.seed) == (7, 8)
    assert first.job.metadata == {"order": "1"}
    path = first.save(tmp_path / "star.png")
    assert hashlib.sha256(path.read_bytes()).hexdigest() == first.artifact.sha256


def test_subscribe_yields_the_events_until_the_last(client: diffuserve.Client) -> None:
    events = list(client.subscribe("a star"))
    assert events[0].type == "queued"
    assert (events[-1].type, events[-1].is_final) == ("succeeded", True)
    assert client.get(events[0].job_id).status is JobStatus.SUCCEEDED
    assert next(client.stream(events[0].job_id, after=events[0].seq or 0)).type != "queued"


def test_a_failed_job_is_an_error_and_so_is_a_canceled_one(client: diffuserve.Client) -> None:
    with pytest.raises(JobNotDone, match=r"failed: the engine says broken \(broken\)"):
        client.generate("fail")
    job = client.cancel(client.submit("wait").id)
    with pytest.raises(JobNotDone, match="cancel"):
        client.fetch(job)


def test_a_job_that_takes_too_long_is_canceled(client: diffuserve.Client) -> None:
    with pytest.raises(TimeoutError, match=r"job_\w+ took more than 0.2 s; it was canceled"):
        client.generate("wait", max_seconds=0.2)
    [newest] = client.list_jobs(limit=1).data
    assert newest.status in (JobStatus.CANCELED, JobStatus.CANCELING)


def test_refusals_are_errors_of_the_tree(client: diffuserve.Client, server: ServerThread) -> None:
    with pytest.raises(InvalidParams, match="nix") as refused:
        client.submit("a star", nix=7)  # type: ignore[call-arg]
    assert refused.value.code == "invalid_params"
    with pytest.raises(JobNotFound):
        client.get("job_nothing")


def test_a_local_image_is_uploaded_and_named(client: diffuserve.Client, tmp_path: Path) -> None:
    content = png()
    (path := tmp_path / "star.png").write_bytes(content)
    assert client.files.upload(content).id == client.files.upload(path).id
    [file] = client.files.page(limit=10).data
    client.files.delete(file.id)


def test_a_job_is_estimated_also_at_a_url_as_clients_of_openai_have_it(server: ServerThread) -> None:
    with diffuserve.Client(f"{server.address}/v1/") as client:
        estimate = client.estimate("a star", num_images=2)
    assert (estimate.model, estimate.warnings) == ("hand", ())
    assert estimate.cost_seconds > 0


def test_a_batch_of_prompts_has_typed_results(client: diffuserve.Client) -> None:
    batch = client.batches.wait(client.batches.submit(["a star", "a circle"]).id)
    assert batch.num_items == 2
    results = list(client.batches.results(batch.id))
    assert [(each.custom_id, each.status) for each in results] == [
        ("item-0", JobStatus.SUCCEEDED),
        ("item-1", JobStatus.SUCCEEDED),
    ]


def test_models_are_listed(client: diffuserve.Client) -> None:
    assert [model.id for model in client.models()] == ["hand"]


@pytest.mark.parametrize("fault", FAULTS, ids=repr)
def test_a_submission_that_is_cut_off_makes_one_job(
    fault: CutRequest | CutResponse | Respond, server: ServerThread, proxy: FaultyProxy
) -> None:
    metadata = {"fault": repr(fault)}
    proxy.fail_next(fault)
    with diffuserve.Client(proxy.url) as client:
        [image] = client.generate("a star", metadata=metadata)
        found = [job.id for job in client.list_jobs(limit=100).data if job.metadata == metadata]
    assert found == [image.job.id]
    assert proxy.requests[:2] == [("POST", "/v1/jobs")] * 2


def test_an_event_stream_that_is_cut_off_goes_on_where_it_was(
    client: diffuserve.Client, proxy: FaultyProxy
) -> None:
    job_id = client.wait(client.submit("a star").id).id
    proxy.fail_next(CutResponse(), Respond(503))
    with diffuserve.Client(proxy.url) as through:
        seqs = [event.seq for event in through.stream(job_id) if event.seq is not None]
    assert seqs == list(range(1, len(seqs) + 1))
    assert len(proxy.requests) == 3


def test_an_image_that_is_cut_off_is_fetched_again(client: diffuserve.Client, proxy: FaultyProxy) -> None:
    job = client.wait(client.submit("a star").id)
    proxy.fail_next(CutResponse(), Respond(502))
    with diffuserve.Client(proxy.url) as through:
        [image] = through.fetch(job)
    assert len(image.content) == image.artifact.size_bytes


def test_a_server_that_is_away_is_named(proxy: FaultyProxy) -> None:
    proxy.always = Respond(503)
    with (
        diffuserve.Client(proxy.url, patience_seconds=0.2) as client,
        pytest.raises(ServerUnavailable, match=proxy.url),
    ):
        client.models()


def test_several_threads_may_use_one_client(client: diffuserve.Client) -> None:
    images: list[diffuserve.GeneratedFile] = []
    threads = [threading.Thread(target=lambda: images.extend(client.generate("a star"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({image.job.id for image in images}) == 4


async def test_the_asynchronous_client_does_the_same(server: ServerThread) -> None:
    async with diffuserve.AsyncClient(server.address) as client:
        [image] = await client.generate("a star", seed=3)
        types = [event.type async for event in client.subscribe("a star")]
    assert (image.artifact.seed, types[-1]) == (3, "succeeded")


async def new_key(settings: Settings) -> str:
    async with open_store(settings) as store:
        return (await store.keys.create(Role.TENANT, tenant_id="shop"))[1]


def test_the_key_comes_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(data_dir=tmp_path, port=0, prompt_filter="none")
    key = asyncio.run(new_key(settings))
    with ServerThread(settings, has_worker=False) as guarded:
        monkeypatch.setenv("DIFFUSERVE_SERVER", guarded.address)
        with diffuserve.Client() as nobody, pytest.raises(Unauthorized):
            nobody.list_jobs()
        monkeypatch.setenv("DIFFUSERVE_API_KEY", key)
        with diffuserve.Client() as shop:
            assert shop.list_jobs().data == ()


def test_it_is_imported_without_what_a_server_needs() -> None:
    program = (
        "import sys, diffuserve; diffuserve.Client, diffuserve.AsyncClient\n"
        "heavy = {'torch', 'numpy', 'fastapi', 'sqlalchemy', 'PIL', 'diffuserve.settings'}\n"
        "assert not heavy & sys.modules.keys(), heavy & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
