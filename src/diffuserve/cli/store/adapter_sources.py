"""The places that adapter files come from: this machine, the hub, a bucket."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from diffuserve.domain.errors import AdapterNotFound, ArtifactNotFound, InvalidAdapter
from diffuserve.domain.models.adapter_entry import MAX_ADAPTER_BYTES
from diffuserve.models.folders import hub
from diffuserve.models.folders.names import is_hub_id

Begin = Callable[[str, int], Callable[[int], None]]
"""Shows a transfer by its name and bytes; what it returns receives the bytes as they arrive."""

_HUB = "hf://"
_BUCKETS = ("s3://", "gs://")
_SUFFIX = ".safetensors"
_CHUNK_BYTES = 8 * 1024 * 1024


@contextmanager
def adapter_file(source: str, begin: Begin) -> Iterator[Path]:
    """Yield the file of a path, of `hf://owner/name[/file]`, or of a bucket, fetching it if necessary.

    Raise `AdapterNotFound`, `InvalidAdapter`, `ModelNotFound` and `HubUnavailable` as the hub says, and
    `ServerUnavailable` for a bucket.
    """
    if source.startswith(_HUB):
        yield _from_hub(source.removeprefix(_HUB), begin)
    elif source.startswith(_BUCKETS):
        with TemporaryDirectory(prefix="diffuserve-adapter-") as folder:
            yield _from_bucket(source, Path(folder), begin)
    else:
        yield Path(source)


def _from_hub(address: str, begin: Begin) -> Path:
    owner, _, rest = address.partition("/")
    name, _, path = rest.partition("/")
    repo_id = f"{owner}/{name}"
    if not name or not is_hub_id(repo_id):
        raise AdapterNotFound(f"{_HUB}{address}: give hf://OWNER/NAME, or hf://OWNER/NAME/FILE{_SUFFIX}")
    download = hub.plan_file(repo_id, "main", path or _only_file(repo_id))
    [file] = download.files
    if file.num_bytes > MAX_ADAPTER_BYTES:
        raise InvalidAdapter(
            f"{repo_id}: {file.path} has {file.num_bytes:,} bytes; adapters at most {MAX_ADAPTER_BYTES:,}"
        )
    if download.missing_bytes:
        return hub.fetch_all(download, begin(file.path, download.missing_bytes)) / file.path
    return hub.fetch_all(download) / file.path


def _only_file(repo_id: str) -> str:
    """Return the only safetensors file of a repository. Raise `AdapterNotFound` if there are others."""
    names = [file.path for file in hub.list_files(repo_id, "main").files if file.path.endswith(_SUFFIX)]
    if len(names) != 1:
        shown = ", ".join(sorted(names)[:10]) or "none"
        raise AdapterNotFound(
            f"{repo_id} has {len(names)} safetensors files ({shown}); name one: hf://{repo_id}/FILE{_SUFFIX}"
        )
    return names[0]


def _from_bucket(url: str, folder: Path, begin: Begin) -> Path:
    import obstore

    from diffuserve.modelstore.bucket import open_place
    from diffuserve.remote.buckets import translated

    place, _, key = url.rpartition("/")
    store, _ = open_place(place, "source")
    path = folder / key
    try:
        with translated("adapter", key), path.open("wb") as file:
            found = obstore.get(store, key)
            size = found.meta["size"]
            if size > MAX_ADAPTER_BYTES:
                raise InvalidAdapter(f"{url} has {size:,} bytes; adapters have at most {MAX_ADAPTER_BYTES:,}")
            report = begin(key, size)
            for chunk in found.stream(min_chunk_size=_CHUNK_BYTES):
                report(file.write(memoryview(chunk)))
    except ArtifactNotFound:
        raise AdapterNotFound(f"{url}: there is no such file") from None
    return path
