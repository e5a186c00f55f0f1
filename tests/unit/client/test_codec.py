"""Resources as JSON, for the client and for commands that print them."""

import orjson
import pytest
from pydantic import ValidationError

from diffuserve.client.codec import decode, encode
from diffuserve.domain.batch import BatchStatus
from diffuserve.domain.job import JobStatus
from diffuserve.domain.resources.batch import BatchResource, BatchUrls
from diffuserve.domain.resources.job import JobResource
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


def test_an_encoded_resource_is_decoded_unchanged() -> None:
    for resource in (make_job(metadata={"a": [1, None]}), BATCH):
        assert decode(type(resource), encode(resource)) == resource


def test_the_encoding_has_every_field_in_order() -> None:
    assert list(orjson.loads(encode(make_job()))) == list(vars(make_job()))


@pytest.mark.parametrize("change", [{"status": "lost"}, {"attempt": "many"}, {"id": None}])
def test_a_malformed_resource_is_an_error(change: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        decode(JobResource, orjson.dumps({**vars(make_job()), **change}))
