"""Every part that a route names is one that applications have."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fastapi.dependencies.models import Dependant

from diffuserve.api.app import ROUTES
from diffuserve.api.config import ApiConfig
from diffuserve.api.http.parts import Uses
from diffuserve.api.services import Services
from diffuserve.events.memory import MemoryEventBus
from diffuserve.jobs.config import StoreConfig
from diffuserve.jobs.store import JobStore
from diffuserve.storage.local import LocalArtifactStore


def uses(dependant: Dependant) -> Iterator[Uses[Any]]:
    for dependency in dependant.dependencies:
        if isinstance(dependency.call, Uses):
            yield dependency.call
        yield from uses(dependency)


def test_an_application_has_the_parts_that_its_routes_use() -> None:
    bus = MemoryEventBus()
    store = JobStore("sqlite://", bus, StoreConfig())
    services = Services.build(store, LocalArtifactStore(Path()), bus, ApiConfig())
    routes: list[Any] = [route for module in ROUTES for route in module.router.routes]
    kinds = {use.kind for route in routes for use in uses(route.dependant)}
    assert len(kinds) > len(ROUTES) // 2
    for kind in kinds:
        assert services.part(kind) is services.part(kind)
