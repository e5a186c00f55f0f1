"""Options of the fleets, and what they say of each worker."""

from pathlib import Path

import pytest

from diffuserve.cli.fleet.keep import (
    FleetAction,
    WorkerOptions,
    bounds_of,
    check_pool,
    fleet_name,
    gpus_of,
)
from diffuserve.cli.fleet.slurm import action_of
from diffuserve.domain.errors import (
    DiffuserveError,
    Forbidden,
    InvalidParams,
    ServerRefused,
    ServerUnavailable,
    Unauthorized,
)
from diffuserve.fleet.control_plane import PoolOfModel
from diffuserve.fleet.plan import FleetBounds
from diffuserve.settings import Settings


def test_a_worker_gets_what_was_given_and_no_key() -> None:
    settings = Settings.with_options(
        model="a", more_models=("b",), device="cpu", max_jobs=2, api_key="s3cret", server="http://n7:8000"
    )
    options = WorkerOptions(
        fleet="tiny", gpus=2, leave_when_idle=60.0, least=1, key_file=Path("/key"), engine_command=None
    )
    words = options.arguments(settings)
    assert words[: words.index("--label")] == (
        *("--model", "a", "--device", "cpu", "--max-jobs", "2", "--model", "b", "--gpus", "2"),
    )
    assert words[words.index("--label") :] == (
        *("--label", "fleet=tiny", "--leave-when-idle", "60", "--leave-at-least", "1", "--key-file", "/key"),
    )


@pytest.mark.parametrize(("given", "device", "gpus"), [(None, None, 1), (None, "cpu", 0), (0.5, None, 0.5)])
def test_a_worker_occupies_a_gpu_unless_it_runs_on_a_cpu(
    given: float | None, device: str | None, gpus: float
) -> None:
    assert gpus_of(Settings.with_options(device=device), given) == gpus


def test_bad_numbers_are_refused() -> None:
    with pytest.raises(InvalidParams, match="share of one GPU"):
        gpus_of(Settings.with_options(), 1.5)
    with pytest.raises(InvalidParams, match="at most --max"):
        bounds_of(3, 2)


@pytest.mark.parametrize(
    ("model", "name"),
    [("flux-schnell", "flux-1-schnell"), ("/models/My Model", "my-model"), ("tiny-flux", "tiny-flux")],
)
def test_a_fleet_is_named_after_its_model(model: str, name: str) -> None:
    assert fleet_name(Settings.with_options(model=model), "") == name
    assert fleet_name(Settings.with_options(model=model), "My Fleet") == "my-fleet"


def test_words_are_an_action_or_options_of_sbatch() -> None:
    options = ["--partition=gpu", "-n1"]
    assert action_of([]) == (FleetAction.KEEP, [])
    assert action_of(options) == (FleetAction.KEEP, options)
    assert action_of(["stop"]) == (FleetAction.STOP, ())
    for words in (["start"], ["status", "--partition=gpu"]):
        with pytest.raises(InvalidParams, match="after --"):
            action_of(words)


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (ServerUnavailable("away"), "diffuserve api"),
        (ServerRefused("a page"), "--server"),
        (Unauthorized("no such key"), "--role monitor"),
        (Forbidden("a worker's key"), "--role monitor"),
    ],
)
def test_a_control_plane_that_cannot_be_asked_is_refused_with_the_remedy(
    error: DiffuserveError, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def size(_pool: PoolOfModel) -> None:
        raise error

    monkeypatch.setattr(PoolOfModel, "size", size)
    pool = PoolOfModel(lambda: "", None, "m", is_spot=False)
    with pytest.raises(DiffuserveError, match=str(error)) as refused:
        check_pool(pool, FleetBounds(1, 2))
    assert remedy in str(refused.value)
