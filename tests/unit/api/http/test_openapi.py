"""The OpenAPI document derives from the dataclasses that the API writes."""

import re
from dataclasses import fields
from inspect import cleandoc
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from diffuserve.api.app import create_app
from diffuserve.api.config import ApiConfig, DoorName
from diffuserve.api.http.openapi import TAGS, close_resources, resource_types
from diffuserve.domain.resource_base import Resource
from diffuserve.domain.workers import worker
from diffuserve.events.memory import MemoryEventBus
from diffuserve.jobs.config import StoreConfig
from diffuserve.jobs.store import JobStore
from diffuserve.storage.local import LocalArtifactStore


@pytest.fixture(scope="module")
def app() -> FastAPI:
    """Return an application over a store that is never opened: the document needs none."""
    return application(ApiConfig())


def application(config: ApiConfig) -> FastAPI:
    bus = MemoryEventBus()
    return create_app(JobStore("sqlite://", bus, StoreConfig()), LocalArtifactStore(Path()), bus, config)


@pytest.fixture(scope="module")
def schemas(app: FastAPI) -> dict[str, Any]:
    found: dict[str, Any] = app.openapi()["components"]["schemas"]
    return found


def documented(schemas: dict[str, Any]) -> dict[str, type[Resource]]:
    """Return the resources in the document, by name."""
    return {kind.__name__: kind for kind in resource_types() if kind.__name__ in schemas}


def test_each_schema_has_the_fields_of_its_dataclass_and_no_others(schemas: dict[str, Any]) -> None:
    resources = documented(schemas)
    assert len(resources) > 30
    for name, resource in resources.items():
        names = [field.name for field in fields(resource)]  # type: ignore[arg-type]
        assert list(schemas[name]["properties"]) == names
        assert schemas[name]["required"] == names
        assert schemas[name]["additionalProperties"] is False


def test_each_description_is_that_of_its_dataclass(schemas: dict[str, Any]) -> None:
    for name, resource in documented(schemas).items():
        assert schemas[name]["description"] == cleandoc(resource.__doc__ or "")
        for field in fields(resource):  # type: ignore[arg-type]
            described = field.metadata.get("description")
            assert schemas[name]["properties"][field.name].get("description", described) == described


def test_every_json_response_is_a_dataclass(app: FastAPI) -> None:
    names = {kind.__name__ for kind in resource_types()} | set(vars(worker))
    models = {
        media["schema"]["$ref"].rpartition("/")[2]
        for path in app.openapi()["paths"].values()
        for operation in path.values()
        for status, response in operation["responses"].items()
        for kind, media in response.get("content", {}).items()
        if status.startswith("2") and kind == "application/json" and "$ref" in media.get("schema", {})
    }
    assert len(models) > 15
    assert models <= names


def test_each_operation_has_a_name_of_its_own_and_a_tag_that_says_what_it_is() -> None:
    with_doors = application(ApiConfig(doors=",".join(DoorName))).openapi()
    operations = [operation for path in with_doors["paths"].values() for operation in path.values()]
    ids = [operation["operationId"] for operation in operations]
    assert len(ids) == len(set(ids))
    assert all(re.fullmatch(r"[a-z][a-z0-9]*([A-Z][a-z0-9]*)*", each) for each in ids)
    assert {"submitJob", "listModels", "falSubmit"} <= set(ids)
    assert {tag for operation in operations for tag in operation["tags"]} == set(TAGS)


def test_operations_of_people_come_before_those_of_workers(app: FastAPI) -> None:
    tags = [tag for path in app.openapi()["paths"].values() for each in path.values() for tag in each["tags"]]
    assert (tags[0], tags[-1]) == ("jobs", "leases")
    assert tags == sorted(tags, key=list(TAGS).index)


def test_streams_say_what_each_of_their_values_is(app: FastAPI) -> None:
    paths = app.openapi()["paths"]
    events = paths["/v1/jobs/{job_id}/events"]["get"]["responses"]["200"]["content"]
    lines = paths["/v1/batches/{batch_id}/results"]["get"]["responses"]["200"]["content"]
    data = events["text/event-stream"]["schema"]["properties"]["data"]
    assert data["contentSchema"] == {"$ref": "#/components/schemas/EventResource"}
    assert lines == {"application/jsonl": {"schema": {"$ref": "#/components/schemas/BatchResult"}}}


def test_the_document_is_the_same_when_it_is_requested_again(app: FastAPI) -> None:
    first = repr(app.openapi())
    close_resources(app.openapi()["components"]["schemas"])
    assert repr(app.openapi()) == first
