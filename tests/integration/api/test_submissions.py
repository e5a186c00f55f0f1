"""Jobs are submitted without a request over HTTP."""

from dataclasses import replace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from diffuserve.api.files.intake import FileIntake, Received
from diffuserve.api.submit.request_bodies import NewJobBody
from diffuserve.api.submit.submission import Submission, Submissions
from diffuserve.domain.errors import BandNotAllowed, DeadlineUnreachable, IdempotencyMismatch, InvalidParams
from diffuserve.domain.jobs.job import JobStatus
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.jobs.config import StoreConfig
from diffuserve.jobs.policy.pricing import predict
from diffuserve.jobs.store import JobStore
from support.hand_worker import HAND_SPEC, HandWorker
from support.image_files import png

SPEC = replace(HAND_SPEC, name="edits", size_multiple=8, min_size=8, max_input_images=1, has_strength=True)


@pytest.fixture
def store_config() -> StoreConfig:
    return StoreConfig(default_plan="free")  # which allows no interactive jobs


@pytest.fixture
def submissions(app: FastAPI, worker: HandWorker) -> Submissions:
    """Return the use case of an application whose only worker offers one model."""
    found: Submissions = app.state.services.part(Submissions)
    return found


@pytest.fixture
def priced(monkeypatch: pytest.MonkeyPatch) -> list[GenerationParams]:
    """Return the parameters of each job that is priced."""
    seen: list[GenerationParams] = []

    def counted(spec: Any, fit: Any, params: GenerationParams) -> Any:
        seen.append(params)
        return predict(spec, fit, params)

    monkeypatch.setattr("diffuserve.api.submit.draft.predict", counted)
    return seen


def submission(idempotency_key: str | None = None, **values: Any) -> Submission:
    body = NewJobBody.model_validate({"input": {"prompt": "a cat"}} | values)
    return Submission("ada", body, "http://api.test", idempotency_key)


async def test_a_job_is_checked_and_priced_once(
    submissions: Submissions, store: JobStore, priced: list[GenerationParams]
) -> None:
    job = await submissions.submit(submission("once", input={"prompt": "a cat", "seed": 7}))
    assert (job.tenant_id, job.status, job.input["seed"]) == ("ada", JobStatus.QUEUED, 7)
    assert await store.jobs.get(job.id, "ada") == job
    assert len(priced) == 1
    again = await submissions.submit(submission("once", input={"prompt": "a cat", "seed": 7}))
    assert again.id == job.id
    with pytest.raises(IdempotencyMismatch):
        await submissions.submit(submission("once", input={"prompt": "a dog"}))


async def test_a_job_with_an_image_is_priced_once_by_its_size(
    app: FastAPI, http: httpx.AsyncClient, submissions: Submissions, priced: list[GenerationParams]
) -> None:
    await HandWorker.register(http, (SPEC,))
    stored = await app.state.services.part(FileIntake).add("ada", Received("file", "a.png", png(128, 64)))
    job = await submissions.submit(submission(model=SPEC.name, input={"prompt": "a cat", "image": stored.id}))
    assert (job.input["width"], job.input["height"]) == (128, 64)
    assert [(params.width, params.height) for params in priced] == [(128, 64)]


async def test_what_an_image_cannot_change_is_refused_before_it_is_looked_at(
    http: httpx.AsyncClient, submissions: Submissions
) -> None:
    await HandWorker.register(http, (SPEC,))
    looked: list[str] = []

    async def resolve(tenant_id: str, params: GenerationParams) -> GenerationParams:
        looked.append(tenant_id)
        return replace(params, image=None)

    named = {"prompt": "a cat", "image": "file_0"}
    refused: list[tuple[dict[str, Any], type[Exception]]] = [
        ({"input": named | {"width": 10_000}}, InvalidParams),
        ({"input": named, "priority": "interactive"}, BandNotAllowed),
        ({"input": named, "deadline": "2020-01-01T00:00:00Z", "best_effort": True}, InvalidParams),
        ({"input": named, "deadline": 1e-9}, DeadlineUnreachable),
    ]
    for values, error in refused:
        with pytest.raises(error):
            await submissions.submit(replace(submission(model=SPEC.name, **values), resolve=resolve))
    assert looked == []
    await submissions.submit(replace(submission(model=SPEC.name, input=named), resolve=resolve))
    assert looked == ["ada"]
