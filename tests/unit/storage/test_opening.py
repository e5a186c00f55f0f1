"""The factory of artifact stores."""

from pathlib import Path

import pytest

from diffuserve.domain.errors import InvalidParams
from diffuserve.storage.bucket import BucketArtifactStore
from diffuserve.storage.local import LocalArtifactStore
from diffuserve.storage.opening import open_artifacts


async def test_a_file_url_opens_a_folder_and_creates_it(tmp_path: Path) -> None:
    folder = tmp_path / "with space" / "results"
    assert isinstance(open_artifacts(folder.as_uri()), LocalArtifactStore)
    assert folder.is_dir()


@pytest.mark.parametrize("url", ["s3://images", "s3://images/prefix/", "gs://images"])
def test_a_bucket_url_opens_a_bucket_without_a_request(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    store = open_artifacts(url)
    assert isinstance(store, BucketArtifactStore)
    assert store.signs_urls


def test_an_invalid_bucket_setting_names_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT", "/no/such/file.json")
    with pytest.raises(InvalidParams, match="artifacts_url='gs://images'"):
        open_artifacts("gs://images/prefix")


@pytest.mark.parametrize("url", ["", "images", "http://host/images", "s3:///images", "gs:images"])
def test_other_urls_are_refused_with_the_remedy(url: str) -> None:
    with pytest.raises(InvalidParams, match=r"give file:///folder, s3://bucket/prefix or gs://bucket/prefix"):
        open_artifacts(url)
