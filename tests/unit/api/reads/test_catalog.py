"""The choice of a model, and how often the store is read for it."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import cast

import pytest

from diffuserve.api.reads.catalog import Catalog
from diffuserve.domain.errors import InvalidParams, ModelNotFound, ServerUnavailable
from diffuserve.domain.jobs.job import VIDEO_GENERATE
from diffuserve.domain.models.cost import CostFit
from diffuserve.domain.models.tiers import NO_TIERS, Tiers
from diffuserve.domain.tenant import FREE, PRO, Tenant
from diffuserve.domain.workers.worker import Worker
from diffuserve.jobs.reads.operations import OfferedModel
from diffuserve.jobs.store import JobStore
from support.hand_worker import HAND_SPEC
from support.virtual_time import in_virtual_time

FIT = CostFit(encode=(0.0, 0.0), step=(0.0, 0.0, 0.0, 0.0), decode=(0.0, 0.0))


@dataclass
class Operations:
    """Part of a job store that counts its reads."""

    served: Mapping[str, OfferedModel] = field(default_factory=dict)
    num_reads: int = 0

    @property
    def operations(self) -> "Operations":
        return self

    async def models(self) -> Mapping[str, OfferedModel]:
        self.num_reads += 1
        return self.served

    async def workers(self) -> list[Worker]:
        self.num_reads += 1
        return []

    async def tenant(self, tenant_id: str) -> Tenant:
        self.num_reads += 1
        return Tenant(tenant_id, PRO if tenant_id == "ada" else FREE)


def serving(*names: str) -> Operations:
    """Build operations that offer a model of each name."""
    return Operations({name: OfferedModel(replace(HAND_SPEC, name=name), FIT) for name in names})


def catalog(
    operations: Operations, default_model: str | None = None, tiers: Mapping[str, Tiers] | None = None
) -> Catalog:
    return Catalog(cast(JobStore, operations), default_model, tiers)


async def test_a_model_is_chosen_by_name_then_by_default_then_as_the_only_one() -> None:
    both = catalog(serving("a", "b"), default_model="b")
    assert (await both.pick("a")).spec.name == "a"
    assert (await both.pick(None)).spec.name == "b"
    assert (await catalog(serving("a")).pick(None)).spec.name == "a"


async def test_the_default_model_is_the_one_of_jobs_that_name_none() -> None:
    cases = ((("a", "b"), "b", "b"), (("a",), None, "a"), (("a", "b"), None, None), ((), "a", None))
    for names, configured, told in cases:
        assert await catalog(serving(*names), default_model=configured).default_model() == told


async def test_a_choice_among_several_models_needs_a_name() -> None:
    with pytest.raises(InvalidParams, match="choose one of: a, b") as raised:
        await catalog(serving("a", "b")).pick(None)
    assert raised.value.field == "model"


async def test_an_unknown_model_is_an_error_that_lists_the_others() -> None:
    with pytest.raises(ModelNotFound, match="'c' is not served; choose one of: a, b"):
        await catalog(serving("a", "b")).pick("c")


async def test_a_server_without_models_is_unavailable() -> None:
    with pytest.raises(
        ServerUnavailable, match=r"no worker has offered a model yet: .*DIFFUSERVE_SCALE_FLOORS"
    ):
        await catalog(serving()).pick("a")


async def test_the_store_is_read_once_for_several_submissions() -> None:
    operations = serving("a")
    cached = catalog(operations)
    for _ in range(3):
        await cached.pick("a")
        assert await cached.workers() == []
        assert await cached.plan("ada") == PRO
    assert operations.num_reads == 3
    assert await cached.plan("bob") == FREE


async def test_a_model_is_served_as_soon_as_its_worker_has_registered() -> None:
    operations = serving()
    cached = catalog(operations)
    with pytest.raises(ServerUnavailable):
        await cached.pick("a")
    operations.served = serving("a").served
    assert (await cached.pick("a")).spec.name == "a"
    operations.served = serving("a", "b").served
    assert (await cached.model("b")).spec.name == "b"
    video = replace(HAND_SPEC, name="c", num_frames=17, max_frames=17)
    operations.served = {**operations.served, "c": OfferedModel(video, FIT)}
    assert (await cached.pick(None, VIDEO_GENERATE)).spec.name == "c"


async def test_an_empty_list_is_not_shown_from_the_cache() -> None:
    operations = serving()
    cached = catalog(operations)
    assert not await cached.models()
    operations.served = serving("a").served
    assert list(await cached.models()) == ["a"]


@in_virtual_time
async def test_a_flood_of_requests_for_unknown_models_seldom_reads_the_store() -> None:
    operations = serving("a")
    cached = catalog(operations)
    await cached.pick("a")

    async def ask(number: int) -> None:
        await asyncio.sleep(number / 1_000)
        with pytest.raises(ModelNotFound):
            await cached.pick(f"unknown_{number}")

    await asyncio.gather(*(ask(number) for number in range(1_000)))
    assert operations.num_reads <= 12, "ten a second"


async def test_models_have_their_tiers_and_what_they_cannot_do_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tiers = {"a": Tiers(steps=(2, 8), sizes=("64x64", "70x70"))}
    limited = catalog(serving("a", "b"), tiers=tiers)
    for _ in range(2):
        served = (await limited.models())["a"]
        assert served.tiers == Tiers(steps=(2, 8), sizes=("64x64",))
        assert served.spec.num_inference_steps in (2, 8)
        limited.prefer("a")  # forgets the models
    assert (await limited.models())["b"].tiers == NO_TIERS
    assert [record.getMessage() for record in caplog.records] == [
        "a cannot draw with 70x70; these tiers are left out"
    ]


async def test_an_alias_is_as_good_as_a_name() -> None:
    store = cast(JobStore, serving("a", "b"))
    models = Catalog(store, None, aliases={"gpt-image-2": "b", "lost": "c"})
    assert (await models.pick("gpt-image-2")).spec.name == "b"
    assert (await models.model("gpt-image-2")).spec.name == "b"
    assert (models.aliases_of("b"), models.aliases_of("a")) == (("gpt-image-2",), ())
    with pytest.raises(ModelNotFound, match="'c' is not served"):
        await models.pick("lost")


async def test_openais_names_are_for_the_only_model() -> None:
    for name in ("gpt-image-1", "dall-e-3", "chatgpt-image-latest"):
        assert (await catalog(serving("a")).pick(name)).spec.name == "a"
        with pytest.raises(ModelNotFound, match=f"'{name}' is not served; choose one of: a, b"):
            await catalog(serving("a", "b"), "a").pick(name)
    with pytest.raises(ModelNotFound):
        await catalog(serving("a")).pick("gpt-4o")
