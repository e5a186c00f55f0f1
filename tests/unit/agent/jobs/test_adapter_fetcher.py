"""Adapters of jobs: each is fetched once for all who wait for it, and a failure is told by its name."""

import asyncio
import threading
from pathlib import Path

import pytest

from diffuserve.agent.jobs.adapter_fetcher import AdapterFetcher
from diffuserve.domain.errors import (
    AdapterNotFound,
    DiffuserveError,
    DownloadFailed,
    InvalidAdapter,
    ServerUnavailable,
)
from diffuserve.domain.requests.adapter_use import AdapterUse
from support.adapters import digest_of

INK = AdapterUse("ink", 0.5, digest_of("ink"))


class Store:
    """Files by digest, which arrive once they may; it counts what is asked of it."""

    def __init__(self, folder: Path, error: Exception | None = None) -> None:
        self.folder, self.asked, self.error = folder, list[str](), error
        self.may_fetch, self.num_evicted = threading.Event(), 0

    def fetch(self, digest: str) -> Path:
        self.asked.append(digest)
        assert self.may_fetch.wait(10)
        if self.error is not None:
            raise self.error
        path = self.folder / digest
        path.write_bytes(b"adapter")
        if self.num_evicted:
            self.num_evicted -= 1
            path.unlink()
        return path


async def test_jobs_share_a_download_which_outlives_a_canceled_one(tmp_path: Path) -> None:
    store = Store(tmp_path)
    fetcher = AdapterFetcher(store.fetch)
    first, second = (asyncio.create_task(fetcher.fetch([INK])) for _ in range(2))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    first.cancel()
    store.may_fetch.set()
    assert INK.digest is not None
    assert (await second)[INK.digest].path == tmp_path / INK.digest
    assert store.asked == [INK.digest]


async def test_what_was_evicted_before_it_was_in_use_is_fetched_again(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.may_fetch.set()
    store.num_evicted = 2
    assert INK.digest is not None
    assert (await AdapterFetcher(store.fetch).fetch([INK]))[INK.digest].path.exists()
    store.num_evicted = 3
    with pytest.raises(DownloadFailed, match="'ink'"):
        await AdapterFetcher(store.fetch).fetch([INK])


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (AdapterNotFound("file:///private has no adapter"), AdapterNotFound),
        (InvalidAdapter("file:///private is damaged"), InvalidAdapter),
        (ServerUnavailable("s3://private"), DownloadFailed),
        (OSError("/private"), DownloadFailed),
    ],
)
async def test_a_failure_names_the_adapter_and_no_place_and_is_tried_again(
    error: Exception, kind: type[DiffuserveError], tmp_path: Path
) -> None:
    store = Store(tmp_path, error)
    store.may_fetch.set()
    fetcher = AdapterFetcher(store.fetch)
    for _ in range(2):
        with pytest.raises(kind, match="'ink'") as failure:
            await fetcher.fetch([INK])
        assert "private" not in str(failure.value)
    assert len(store.asked) == 2
