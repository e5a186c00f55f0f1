"""The search for jobs, on both databases: what matches, page by page, from a bounded part of all jobs."""

import pytest

from diffuserve.domain.jobs.job import Job, JobStatus
from diffuserve.jobs.reads import search
from diffuserve.jobs.reads.search import FoundJobs, JobFilter
from diffuserve.jobs.store import JobStore
from support.store_driver import add_worker, claim, new_job

PROMPTS = (
    "A red STAR over the sea",
    "a blue star",
    'a "quoted" star, 100% _red_',
    "ein ÄRGERLICHER Stern",
    "a blue star",
)


@pytest.fixture
async def made(job_store: JobStore) -> list[Job]:
    """Jobs of ada, newest first, after one of another tenant."""
    jobs = [await job_store.jobs.submit(new_job(input={"prompt": prompt})) for prompt in PROMPTS]
    await job_store.jobs.submit(new_job("bob", input={"prompt": PROMPTS[1]}))
    return jobs[::-1]


async def found(store: JobStore, **values: object) -> list[str]:
    page = await store.jobs.search(JobFilter(**{"tenant_id": "ada"} | values))  # type: ignore[arg-type]
    assert page.next is None
    return [job.id for job in page.jobs]


@pytest.mark.parametrize(
    ("words", "places"),
    [
        (("star",), [0, 2, 3, 4]),
        (("Red", "star"), [2, 4]),
        (('"QUOTED"',), [2]),
        (("100%",), [2]),
        (("_red_",), [2]),
        (("ärgerlicher",), [1]),
        (("prompt",), []),
        (("s_ar",), []),
    ],
)
async def test_all_words_occur_in_the_prompt(
    job_store: JobStore, made: list[Job], words: tuple[str, ...], places: list[int]
) -> None:
    assert await found(job_store, words=words) == [made[place].id for place in places]


async def test_the_same_prompt_is_found_within_the_tenant_alone(job_store: JobStore, made: list[Job]) -> None:
    assert await found(job_store, prompt=PROMPTS[1]) == [made[0].id, made[3].id]
    assert len(await found(job_store, tenant_id=None, prompt=PROMPTS[1])) == 3


async def test_filters_add_up(job_store: JobStore, made: list[Job]) -> None:
    other = await job_store.jobs.submit(new_job(model="other", batch_id="batch_1", kind="video.generate"))
    await job_store.jobs.submit(new_job("bob", model="other"))
    await job_store.jobs.cancel(made[2].id)
    running = (await claim(job_store, await add_worker(job_store, "tiny")))[0].job_id
    ids = [job.id for job in made]
    queued, canceled = JobStatus.QUEUED, JobStatus.CANCELED
    assert await found(job_store) == [other.id, *ids]
    assert await found(job_store, model="other") == [other.id]
    assert await found(job_store, kind="video.generate") == [other.id]
    assert await found(job_store, kind="image.generate") == ids
    assert await found(job_store, batch_id="batch_1") == [other.id]
    assert await found(job_store, batch_id="batch_1", words=("star",), statuses=[queued]) == [other.id]
    assert await found(job_store, batch_id="batch_1", tenant_id="bob") == []
    assert await found(job_store, statuses=[canceled]) == [ids[2]]
    assert await found(job_store, statuses=[canceled, queued], model="other") == [other.id]
    assert await found(job_store, statuses=[JobStatus.RUNNING]) == [running]
    assert await found(job_store, statuses=[JobStatus.RUNNING], tenant_id="bob") == []
    assert await found(job_store, statuses=[canceled], words=("quoted",)) == [ids[2]]


async def test_deleted_jobs_are_not_found(job_store: JobStore, made: list[Job]) -> None:
    await job_store.jobs.delete(made[0].id)
    assert await found(job_store, prompt=PROMPTS[1]) == [made[3].id]


@pytest.mark.parametrize(
    "wanted", [{}, {"words": ("star",)}, {"model": "tiny"}, {"batch_id": "batch_1"}, {"prompt": "a star"}]
)
async def test_pages_hold_every_match_once(
    job_store: JobStore, monkeypatch: pytest.MonkeyPatch, wanted: dict[str, object]
) -> None:
    """Parts of three jobs each, so that pages end within a part and at its end."""
    monkeypatch.setattr(search, "ROWS_BY_COLUMNS", 3)
    monkeypatch.setattr(search, "ROWS_BY_PROMPT", 6)
    monkeypatch.setattr(search, "_ROWS_AT_ONCE", 3)
    jobs = [await job_store.jobs.submit(new_job(batch_id="batch_1")) for _ in range(10)]
    seen: list[str] = []
    page = FoundJobs((), "job_ffffffffffffffffffffffffff")
    while page.next is not None:
        filters = JobFilter(tenant_id="ada", **wanted)  # type: ignore[arg-type]
        page = await job_store.jobs.search(filters, after=page.next, limit=4)
        assert len(page.jobs) <= 4
        seen += [job.id for job in page.jobs]
    assert seen == [job.id for job in reversed(jobs)]


@pytest.mark.parametrize("wanted", [{"words": ("unicorn",)}, {"model": "other"}])
async def test_a_search_that_finds_nothing_says_where_to_go_on(
    job_store: JobStore, monkeypatch: pytest.MonkeyPatch, wanted: dict[str, object]
) -> None:
    monkeypatch.setattr(search, "ROWS_BY_COLUMNS", 4)
    monkeypatch.setattr(search, "ROWS_BY_PROMPT", 4)
    monkeypatch.setattr(search, "_ROWS_AT_ONCE", 2)
    jobs = [await job_store.jobs.submit(new_job()) for _ in range(9)]
    filters = JobFilter(tenant_id="ada", **wanted)  # type: ignore[arg-type]
    page = await job_store.jobs.search(filters)
    assert page == FoundJobs((), jobs[5].id), "four were looked at"
    page = await job_store.jobs.search(filters, after=page.next)
    assert page == FoundJobs((), jobs[1].id)
    assert await job_store.jobs.search(filters, after=page.next) == FoundJobs((), None)
