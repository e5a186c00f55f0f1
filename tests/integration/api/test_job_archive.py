"""The files of several jobs as a single zip."""

import io
import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

import httpx
import pytest

from diffuserve.domain.errors import ServerUnavailable
from diffuserve.domain.tenant import Role
from diffuserve.jobs.store import JobStore
from diffuserve.storage.local import LocalArtifactStore
from support.hand_worker import PNG, HandWorker


async def finished(http: httpx.AsyncClient, worker: HandWorker, prompt: str, num_images: int = 1) -> Any:
    body = {"input": {"prompt": prompt, "seed": 7, "num_images": num_images}}
    job = (await http.post("/v1/jobs", json=body)).raise_for_status().json()
    [lease] = await worker.claim()
    (await worker.complete(lease)).raise_for_status()
    return (await http.get(f"/v1/jobs/{job['id']}")).json()


async def archive_of(http: httpx.AsyncClient, *ids: str) -> tuple[zipfile.ZipFile, Any]:
    response = await http.get("/v1/jobs/archive", params={"id": list(ids)})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/zip"
    archive = zipfile.ZipFile(io.BytesIO(response.content))
    assert archive.testzip() is None
    return archive, json.loads(archive.read("manifest.json"))


async def test_an_archive_holds_the_files_and_the_inputs(http: httpx.AsyncClient, worker: HandWorker) -> None:
    cat = await finished(http, worker, "../../A red cat!", num_images=2)
    dog = await finished(http, worker, "星")
    archive, manifest = await archive_of(http, dog["id"], cat["id"], dog["id"])
    names = [f"image_7_{dog['id']}.png", f"a-red-cat_7_{cat['id']}_1.png", f"a-red-cat_8_{cat['id']}_2.png"]
    assert archive.namelist() == [*names, "manifest.json"]
    assert {archive.read(name) for name in names} == {PNG}
    assert {entry.compress_type for entry in archive.infolist()} == {zipfile.ZIP_STORED}
    assert [job["id"] for job in manifest["jobs"]] == [dog["id"], cat["id"]]
    assert manifest["jobs"][1]["input"] == cat["input"]
    assert manifest["jobs"][1]["files"] == names[1:]
    assert manifest["missing"] == []


async def test_what_is_missing_is_named_and_breaks_nothing(
    http: httpx.AsyncClient, worker: HandWorker, tmp_path: Path
) -> None:
    gone = await finished(http, worker, "gone")
    kept = await finished(http, worker, "kept")
    queued = (await http.post("/v1/jobs", json={"input": {"prompt": "later"}})).json()
    shutil.rmtree(tmp_path / "artifacts" / gone["id"])
    archive, manifest = await archive_of(http, gone["id"], kept["id"], queued["id"], "job_00")
    assert archive.namelist() == [f"kept_7_{kept['id']}.png", "manifest.json"]
    reasons = {missing["job_id"]: missing["reason"] for missing in manifest["missing"]}
    assert reasons[queued["id"]] == "the job is queued and has no files"
    assert reasons["job_00"] == "job_not_found"
    assert reasons[gone["id"]].startswith("no file ")


async def test_a_store_that_fails_within_a_file_breaks_the_archive_off(
    http: httpx.AsyncClient, worker: HandWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await finished(http, worker, "a cat")

    async def broken(_store: LocalArtifactStore, key: str, _part: object = None) -> Any:
        yield PNG[:10]
        raise ServerUnavailable(f"{key} cannot be read")

    monkeypatch.setattr(LocalArtifactStore, "read", broken)
    with pytest.raises(RuntimeError, match="response already started"):
        await http.get("/v1/jobs/archive", params={"id": job["id"]})


async def test_no_job_is_no_archive_and_too_many_are_refused(
    http: httpx.AsyncClient, worker: HandWorker
) -> None:
    assert (await http.get("/v1/jobs/archive", params={"id": "job_00"})).status_code == 404
    many = [f"job_{number:x}" for number in range(101)]
    assert (await http.get("/v1/jobs/archive", params={"id": many})).status_code == 422
    assert (await http.get("/v1/jobs/archive")).status_code == 422


async def test_a_job_of_another_tenant_is_as_unknown_as_none(
    http: httpx.AsyncClient, store: JobStore
) -> None:
    keys = {}
    for name, role in (("worker", Role.WORKER), ("ada", Role.TENANT), ("bob", Role.TENANT)):
        tenant = name if role is Role.TENANT else None
        keys[name] = (await store.keys.create(role, tenant_id=tenant))[1]
    http.headers["authorization"] = f"Bearer {keys['worker']}"
    worker = await HandWorker.register(http)
    http.headers["authorization"] = f"Bearer {keys['ada']}"
    secret = (await http.post("/v1/jobs", json={"input": {"prompt": "a secret cat"}})).json()
    http.headers["authorization"] = f"Bearer {keys['worker']}"
    [lease] = await worker.claim()
    await worker.complete(lease)
    http.headers["authorization"] = f"Bearer {keys['bob']}"
    own = (await http.post("/v1/jobs", json={"input": {"prompt": "mine"}})).json()
    archive, manifest = await archive_of(http, secret["id"], own["id"])
    assert archive.namelist() == ["manifest.json"]
    assert manifest["missing"][0] == {"job_id": secret["id"], "reason": "job_not_found"}
    assert "secret" not in json.dumps(manifest)
    assert (await http.get("/v1/jobs/archive", params={"id": secret["id"]})).status_code == 404
