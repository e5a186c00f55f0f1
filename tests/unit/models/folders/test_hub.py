"""Downloads from the hub: what is fetched, what continues, and what is said when it cannot be had."""

import sys
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub.constants
import pytest

from diffuserve.domain.errors import HubUnavailable, ModelNotFound
from diffuserve.models.folders import hub
from diffuserve.models.folders.folder import open_model
from support.fake_hub import LARGE_BYTES, FakeHub, fake_hub, use_hub

REPO = "studio/shapes"
COMMIT = "0123456789" * 4
WEIGHTS = "transformer/diffusion_pytorch_model.safetensors"


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """Serve a repository with files that nothing reads beside the others; the cache is empty."""
    files = {"model_index.json": b"{}", "vae/config.json": b"{}", WEIGHTS: bytes(range(250)) * 20}
    unread = {"flux1.safetensors": b"x" * LARGE_BYTES, "transformer/model.bin": b"x", "pipeline.py": b"x"}
    unread |= {WEIGHTS.replace(".safetensors", ".fp16.safetensors"): b"x" * LARGE_BYTES}
    unread |= {"safety_checker/model.safetensors": b"x" * LARGE_BYTES}
    with fake_hub(FakeHub(REPO, COMMIT, files | unread)) as served:
        use_hub(served, tmp_path / "hub", monkeypatch)
        yield served


def test_a_pulled_model_is_whole_and_holds_only_what_is_read(served: FakeHub) -> None:
    folder = hub.fetch_all(hub.plan_download(REPO, COMMIT))
    fetched = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    read = {path for path in served.files if "/" in path or path.endswith(".json")}
    assert fetched == {path for path in read if "fp16" not in path and "safety" not in path} - {
        "transformer/model.bin"
    }
    assert all((folder / path).read_bytes() == served.files[path] for path in fetched)
    assert hub.cached_folder(REPO, COMMIT) == folder


def test_a_model_is_downloaded_once_and_opened_without_the_hub(served: FakeHub) -> None:
    hub.fetch_all(hub.plan_download(REPO, "main"))
    assert len(served.fetched()) == len(set(served.fetched()))
    num_requests = len(served.requests)
    folder = open_model(REPO)
    assert (folder.path.name, folder.name) == (COMMIT, "shapes")
    assert open_model(f"{REPO}@{COMMIT}").path == folder.path
    assert len(served.requests) == num_requests


def test_a_digest_that_would_name_another_file_is_refused(
    served: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("support.fake_hub.sha256", lambda _content: "../../../../escaped")
    with pytest.raises(HubUnavailable, match="SHA-256"):
        hub.plan_download(REPO, COMMIT)


def test_progress_counts_every_byte_of_the_large_files_once(served: FakeHub) -> None:
    download = hub.plan_download(REPO, COMMIT)
    arrived: list[int] = []
    served.cut_after[WEIGHTS] = 1_000  # the library resumes within the call
    hub.fetch_all(download, arrived.append)
    assert sum(arrived) == sum(file.num_bytes for file in download.files if file.sha256)
    assert download.missing_bytes == download.num_bytes
    assert hub.plan_download(REPO, COMMIT).missing_bytes == 0


def test_a_download_without_a_terminal_is_logged(
    served: FakeHub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(hub, "_LOG_SECONDS", 0.0)
    with caplog.at_level("INFO", logger="diffuserve.models.folders.hub"):
        open_model(f"{REPO}@{COMMIT}")
    assert caplog.messages == [f"downloading {REPO}: 0.0 of 0.0 GB"] * 2


def test_a_download_that_was_stopped_continues_where_it_was(served: FakeHub) -> None:
    download = hub.plan_download(REPO, COMMIT)
    large = next(file for file in download.files if file.path == WEIGHTS)
    part = hub.repo_folder(REPO) / "blobs" / f"{large.sha256}.incomplete"
    part.parent.mkdir(parents=True)
    part.write_bytes(served.files[WEIGHTS][:3_000])

    rest = hub.plan_download(REPO, COMMIT)
    assert rest.missing_bytes == download.num_bytes - 3_000
    folder = hub.fetch_all(rest)
    ranges = [given for method, path, given in served.requests if method == "GET" and path.endswith(WEIGHTS)]
    assert ranges == ["bytes=3000-"]
    assert (folder / WEIGHTS).read_bytes() == served.files[WEIGHTS]


def test_an_interruption_keeps_what_has_arrived(served: FakeHub) -> None:
    def interrupt(num_bytes: int) -> None:
        raise KeyboardInterrupt

    download = hub.plan_download(REPO, COMMIT)
    with pytest.raises(KeyboardInterrupt):
        hub.fetch_all(download, interrupt)
    assert hub.cached_folder(REPO, COMMIT) is None
    folder = hub.fetch_all(hub.plan_download(REPO, COMMIT))
    assert hub.cached_folder(REPO, COMMIT) == folder


def test_a_damaged_file_is_not_kept(served: FakeHub) -> None:
    served.damaged.add(WEIGHTS)
    with pytest.raises(HubUnavailable, match=f"{WEIGHTS} of {REPO} arrived damaged"):
        hub.fetch_all(hub.plan_download(REPO, COMMIT))
    assert hub.cached_folder(REPO, COMMIT) is None
    served.damaged.clear()
    assert (hub.fetch_all(hub.plan_download(REPO, COMMIT)) / WEIGHTS).read_bytes() == served.files[WEIGHTS]


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        ("GatedRepo", "accept its terms at .*/studio/shapes, then log in with `hf auth login`"),
        ("RepoNotFound", "the hub has no model 'studio/shapes', or it is private"),
        ("RevisionNotFound", "has no revision 'v2'; see .*/studio/shapes/commits/main"),
    ],
)
def test_a_refusal_of_the_hub_names_the_remedy(served: FakeHub, error: str, remedy: str) -> None:
    served.error = error
    with pytest.raises(ModelNotFound, match=remedy) as refusal:
        hub.plan_download(REPO, "v2")
    assert not isinstance(refusal.value, HubUnavailable)


def test_a_hub_that_cannot_be_reached_is_told_apart(served: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(
        HubUnavailable, match=r"could not be fetched from http://127\.0\.0\.1:1 .*HF_ENDPOINT"
    ):
        open_model(f"{REPO}@{COMMIT}")


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert hub.cached_repositories() == []
    with pytest.raises(ModelNotFound, match=r"pip install 'diffuserve\[engine\]'"):
        open_model(f"{REPO}@{COMMIT}")


def test_a_repository_of_another_format_is_refused_before_anything_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fake_hub(FakeHub(REPO, COMMIT, {"model.gguf": b"x" * LARGE_BYTES})) as served:
        use_hub(served, tmp_path / "hub", monkeypatch)
        with pytest.raises(ModelNotFound, match="no model_index"):
            hub.plan_download(REPO, "main")
        assert served.fetched() == []


def test_a_name_without_a_commit_is_ambiguous_when_several_are_here(
    served: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.fetch_all(hub.plan_download(REPO, COMMIT))
    served.commit = "f" * 40
    hub.fetch_all(hub.plan_download(REPO, "main"))
    with pytest.raises(ModelNotFound, match=f"2 commits are on this machine \\({COMMIT}, {'f' * 40}\\)"):
        open_model(REPO)
