"""Resources as JSON, for the client and for commands that print them."""

import orjson
import pytest

from diffuserve.client.codec import decode, encode
from diffuserve.domain.errors import ServerRefused
from diffuserve.domain.jobs.batch import BatchStatus
from diffuserve.domain.jobs.job import JobStatus
from diffuserve.domain.resources.batch import BatchResource, BatchUrls
from diffuserve.domain.resources.job import ArtifactResource, JobResource
from diffuserve.domain.workers.worker import Lease
from support.resources import make_job

BATCH = BatchResource(
    id="batch_1",
    status=BatchStatus.RUNNING,
    counts={JobStatus.QUEUED: 2},
    num_items=2,
    metadata={},
    urls=BatchUrls(self="/b", cancel="/b/cancel", results="/b/results"),
    created_at="2026-01-02T03:04:05.000Z",
    finished_at=None,
)
LEASE = Lease(
    job_id="job_1", lease_token=1, kind="image.generate", model="m", input={}, attempt=1, lease_seconds=30.0
)


def test_an_encoded_resource_is_decoded_unchanged() -> None:
    for resource in (make_job(metadata={"a": [1, None]}), BATCH):
        assert decode(type(resource), encode(resource)) == resource


def test_the_encoding_has_every_field_in_order() -> None:
    assert list(orjson.loads(encode(make_job()))) == list(vars(make_job()))


@pytest.mark.parametrize("change", [{"status": "lost"}, {"attempt": "many"}, {"id": None}])
def test_a_malformed_resource_is_an_error_of_the_server(change: dict[str, object]) -> None:
    with pytest.raises(ServerRefused, match=rf"no JobResource: {next(iter(change))}"):
        decode(JobResource, orjson.dumps({**vars(make_job()), **change}))


OUTSIDE = ["/etc/cron.d/evil", "../evil", "..", ".bashrc", "a/b", "a\n", "", "a" * 101]


@pytest.mark.parametrize("name", OUTSIDE)
def test_no_answer_holds_a_name_that_leads_out_of_a_folder(name: str) -> None:
    artifact = {"name": name, "content_type": "image/png", "size_bytes": 1, "sha256": "0" * 64, "url": "/x"}
    sized = artifact | {"width": 1, "height": 1}
    for kind, answer in (
        (ArtifactResource, sized),
        (JobResource, vars(make_job()) | {"id": name}),
        (Lease, vars(LEASE) | {"job_id": name}),
        (Lease, vars(LEASE) | {"output_format": name}),
    ):
        with pytest.raises(ServerRefused):
            decode(kind, orjson.dumps(answer))
    assert decode(ArtifactResource, orjson.dumps(sized | {"name": "0-poster.webp"}))
    assert decode(Lease, orjson.dumps(LEASE)) == LEASE
