"""Ids stand in paths, and lead nowhere else."""

from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffuserve.client.ids import checked_id
from diffuserve.domain.errors import InvalidParams
from diffuserve.sdk.async_client import AsyncClient
from support.resources import make_job


@given(st.text(st.sampled_from("a9_-.:@/%?#\\ \n"), max_size=6) | st.text(max_size=4))
def test_an_id_that_is_allowed_is_one_segment_of_a_path(text: str) -> None:
    try:
        checked_id(text)
    except InvalidParams:
        return
    url = httpx.Client(base_url="http://server").build_request("GET", f"/v1/jobs/{text}/cancel").url
    assert url.path == f"/v1/jobs/{text}/cancel"
    assert (url.query, url.fragment) == (b"", "")


@pytest.mark.parametrize("name", ["job_01a2", "batch_file_9", "file-ab", "gpu-3.local:9100", "me@host"])
def test_ids_of_the_server_are_allowed(name: str) -> None:
    assert checked_id(name) == name


@pytest.mark.parametrize("given_id", ["../models", "", "..", "a/result", make_job()])
async def test_nothing_is_sent_for_what_is_no_id(given_id: Any) -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        raise AssertionError(request.url)

    async with AsyncClient("http://server", transport=httpx.MockTransport(handler)) as client:
        for call in (client.get, client.delete, client.files.get, client.batches.cancel):
            with pytest.raises(InvalidParams, match="id="):
                await call(given_id)
