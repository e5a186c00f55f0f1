"""Messages of workers that the store must not receive."""

import math
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import pytest
from pydantic import ValidationError

from diffuserve.api.workers.worker_validation import (
    check_completion,
    check_failure,
    check_heartbeat,
    check_progress,
    check_registration,
    check_storable,
)
from diffuserve.domain.codec import from_values
from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.jobs.checkpoint import StoredCheckpoint
from diffuserve.domain.jobs.claim import Claim, EnginePlace
from diffuserve.domain.jobs.job import Artifact, Band, JobError, JobResult
from diffuserve.domain.jobs.progress_report import WorkerProgress
from diffuserve.domain.models.cost import CostFit
from diffuserve.domain.workers.peers import PeerAddress, PeerReport
from diffuserve.domain.workers.worker import (
    Completion,
    Failure,
    Heartbeat,
    HeldLease,
    LoadProgress,
    ModelOffer,
    Registration,
    Release,
    WorkerReport,
    WorkerState,
)
from support.hand_worker import HAND_SPEC

REPORT = WorkerReport(state=WorkerState.READY)
FIT = {"encode": [0, 0], "step": [0, 0, 0, 0], "decode": [0, 0]}
SPEC = asdict(HAND_SPEC)
CHECKS: dict[type, Callable[[Any], Any]] = {
    Registration: check_registration,
    Heartbeat: check_heartbeat,
    WorkerProgress: check_progress,
    Completion: check_completion,
    Failure: check_failure,
}


def received(message: object, **changed: object) -> Any:
    """Return a message as a route gets it from a worker, which may change some of its fields."""
    values = asdict(message) | changed  # type: ignore[call-overload]
    return CHECKS.get(type(message), check_storable)(from_values(type(message), values))


def refused(message: object, **changed: object) -> str:
    """Return the field for which a message is refused, and why."""
    with pytest.raises((InvalidParams, ValidationError)) as raised:
        received(message, **changed)
    if isinstance(raised.value, InvalidParams):
        return f"{raised.value.field}: {raised.value}"
    assert isinstance(raised.value, ValidationError)
    first = raised.value.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


REGISTRATION = Registration(models=(ModelOffer(spec=HAND_SPEC),), report=REPORT)


def test_a_valid_registration_is_as_it_was_without_what_a_later_version_adds() -> None:
    offer = {"spec": SPEC | {"from_the_future": 1}, "fit": FIT}
    fit = CostFit((0, 0), (0, 0, 0, 0), (0, 0))
    assert received(REGISTRATION, models=[offer]) == replace(
        REGISTRATION, models=(ModelOffer(spec=HAND_SPEC, fit=fit),)
    )


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({}, "models.0.spec.name"),
        (SPEC | {"name": ["a"]}, "models.0.spec.name"),
        (SPEC | {"name": ""}, "models.0.spec.name"),
        (SPEC | {"name": "a\nb"}, "models.0.spec.name"),
        (SPEC | {"name": "a" * 201}, "models.0.spec.name"),
        (SPEC | {"width": "64"}, "models.0.spec.width"),
        (SPEC | {"pixels_per_token": 0}, "models.0.spec.pixels_per_token"),
        (SPEC | {"learned_min_size": -1}, "models.0.spec.learned_min_size"),
        (SPEC | {"has_guidance": 1}, "models.0.spec.has_guidance"),
        (SPEC | {"width": 2**64}, "body"),
        (SPEC | {"example_prompt": "\0"}, "body"),
    ],
)
def test_an_invalid_model_is_rejected(spec: dict[str, Any], field: str) -> None:
    assert refused(REGISTRATION, models=[{"spec": spec}]).startswith(f"{field}: ")


def test_a_model_is_offered_once() -> None:
    assert "models.1.spec.name" in refused(REGISTRATION, models=[{"spec": SPEC}] * 2)


@pytest.mark.parametrize(
    "fit", [{}, FIT | {"step": [0]}, FIT | {"decode": [math.nan, 0]}, FIT | {"load_seconds": 1e9}]
)
def test_a_fit_that_cannot_price_a_job_is_rejected(fit: dict[str, Any]) -> None:
    assert refused(REGISTRATION, models=[{"spec": SPEC, "fit": fit}]).startswith("models.0.fit.")
    assert refused(Heartbeat(report=REPORT), fits={"hand": fit}).startswith("fits.hand.")


def test_a_worker_cannot_report_itself_as_lost() -> None:
    lost = WorkerReport(state=WorkerState.LOST)
    assert "cannot report itself as lost" in refused(Heartbeat(report=lost))
    assert "cannot report itself as lost" in refused(replace(REGISTRATION, report=lost))


@pytest.mark.parametrize("phase", ["x" * 201, "weights\n"])
def test_a_phase_that_no_page_can_show_is_rejected(phase: str) -> None:
    loading = WorkerReport(state=WorkerState.INITIALIZING, loading=LoadProgress(phase=phase))
    assert "printable" in refused(Heartbeat(report=loading))
    assert "printable" in refused(replace(REGISTRATION, report=loading))


def test_a_report_that_would_fill_every_view_of_the_workers_is_rejected() -> None:
    received(Heartbeat(report=replace(REPORT, resident_models=("x" * 200,) * 150)))
    full = Heartbeat(report=replace(REPORT, resident_models=("x" * 200,) * 165))
    assert "at most 32,768 bytes" in refused(full)


HOSTILE = ("a\x1b]52;c;cHduZWQ=\x07", "a\n", "\x9b2J", "\u202egpj", "x" * 201)


@pytest.mark.parametrize("text", HOSTILE)
def test_what_a_terminal_would_not_show_as_it_is_is_rejected(text: str) -> None:
    said: dict[str, Any] = dict.fromkeys(("device_name", "drain_reason", "quantization"), text)
    said |= {"resident_models": (text,), "withdrawn_models": {"m": text}}
    reports = [
        (f"report.{field}", Heartbeat(report=replace(REPORT, **{field: value})))
        for field, value in said.items()
    ]
    for field, message in (
        ("name", replace(REGISTRATION, name=text)),
        ("labels", replace(REGISTRATION, labels={"zone": text})),
        ("labels", replace(REGISTRATION, labels={text: "b"})),
        ("error.code", Failure(lease_token=1, error=JobError(text, ""))),
        ("claim_id", Claim(claim_id=text, num_jobs=1)),
        *reports,
    ):
        told = refused(message)
        assert told.startswith(f"{field}: ")
        assert "printable" in told or "characters" in told


def test_what_a_registration_describes_has_bounds() -> None:
    full = replace(REGISTRATION, name="x" * 200, labels={f"{n:200}": "y" * 200 for n in range(32)})
    assert received(full) == full
    many = tuple(ModelOffer(spec=replace(HAND_SPEC, name=f"m{n}")) for n in range(101))
    for field, beyond in (
        ("labels", replace(REGISTRATION, labels={str(n): "" for n in range(33)})),
        ("models", replace(REGISTRATION, models=many)),
        ("price_per_hour", replace(REGISTRATION, price_per_hour=math.inf)),
        ("price_per_hour", replace(REGISTRATION, price_per_hour=-1.0)),
    ):
        assert refused(beyond).startswith(f"{field}: ")
    assert received(replace(REGISTRATION, models=many[:100]))


def test_claims_and_results_have_bounds() -> None:
    for claim in (
        Claim(claim_id="c" * 65, num_jobs=1),
        Claim(claim_id="c", num_jobs=1, models=("m",) * 101),
        Claim(claim_id="c", num_jobs=1, ahead_of={str(n): EnginePlace(band=Band.BATCH) for n in range(101)}),
        Claim(claim_id="c", num_jobs=1, resident_models=("m" * 201,)),
    ):
        assert refused(claim)
    for result in (
        JobResult(warnings=("w",) * 101),
        JobResult(warnings=("w" * 1_001,)),
        JobResult(input={"prompt": "p" * 70_000}),
    ):
        assert refused(completed(result)).startswith("result.")
    full = JobResult(warnings=("w" * 1_000,) * 100, input={"prompt": "p" * 60_000})
    assert received(completed(full)).result == full


def test_a_long_error_is_cut() -> None:
    told = received(Failure(lease_token=1, error=JobError("broken", "é" * 10_001)))
    assert told.error == JobError("broken", "é" * 10_000)


def test_numbers_too_large_for_the_database_are_rejected() -> None:
    assert refused(Heartbeat(report=REPORT, held=(HeldLease(job_id="j", lease_token=1, step=2**60),)))
    assert refused(Heartbeat(report=REPORT, held=(HeldLease(job_id="j", lease_token=2**60),)))
    assert refused(Claim(claim_id="c", num_jobs=2**60))


@pytest.mark.parametrize("num_jobs", [0, -1])
def test_a_claim_for_no_job_is_rejected(num_jobs: int) -> None:
    assert refused(Claim(claim_id="c", num_jobs=num_jobs)).startswith("num_jobs: ")


@pytest.mark.parametrize("field", ["slot", "step", "size_bytes", "sha256"])
def test_a_checkpoint_that_no_worker_keeps_is_rejected(field: str) -> None:
    stored = StoredCheckpoint(lease_token=1, slot=1, step=1, size_bytes=1, sha256="a" * 64)
    assert received(stored) == stored
    assert refused(stored, **{field: -1}).startswith(f"{field}: ")


def test_peers_are_at_one_place_of_a_private_network() -> None:
    here = PeerReport(model="a" * 64, address=PeerAddress("10.0.0.7", 6881))
    assert received(Heartbeat(report=replace(REPORT, peers=(here,))))
    for peers in (
        (here, replace(here, address=PeerAddress("10.0.0.8", 6881))),
        (replace(here, address=PeerAddress("8.8.8.8", 6881)),),
        (replace(here, address=PeerAddress("10.0.0.7", 65_536)),),
        (replace(here, model="../b"),),
        (here,) * 17,
    ):
        assert refused(Heartbeat(report=replace(REPORT, peers=peers))).startswith("report.peers")


FILE = Artifact(
    name="0.png", content_type="image/png", size_bytes=1, sha256="ab" * 32, width=1, height=1, seed=2**62
)


def completed(result: JobResult) -> Completion:
    return Completion(lease_token=1, result=result, actual_seconds=0)


@pytest.mark.parametrize("file", [FILE, replace(FILE, content_type="image/svg+xml", index=15, fps=24)])
def test_files_as_workers_make_them_are_accepted(file: Artifact) -> None:
    completion = completed(JobResult(artifacts=(file,), timings={"denoise_seconds": 3_600.0}))
    assert received(completion) == completion


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", "../../job_2/1/0.png"),
        ("name", ".hidden"),
        ("name", "latents.safetensors"),
        ("content_type", "image/png\r\nset-cookie: a=b"),
        ("content_type", "image/png\n"),
        ("content_type", ""),
        ("content_type", "image/" + "x" * 500),
        ("sha256", "a\r\nset-cookie: a=b"),
        ("sha256", "€" * 64),
        ("sha256", ""),
        ("role", "x"),
        ("size_bytes", 0),
        ("size_bytes", 2**60),
        ("width", 0),
        ("height", 70_000),
        ("index", -1),
        ("index", 2**62),
        ("seed", -1),
        ("num_frames", 0),
        ("fps", 0),
    ],
)
def test_files_that_no_worker_makes_are_rejected(field: str, value: object) -> None:
    file = replace(FILE, **{field: value})  # type: ignore[arg-type]
    told = refused(completed(JobResult(artifacts=(FILE, file))))
    assert told.startswith(f"result.artifacts.1.{field}: ")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("timings", {"queue_seconds": math.inf}),
        ("timings", {"queue_seconds": -1.0}),
        ("timings", {"queue_seconds": 1e300}),
        ("timings", {str(number): 0.0 for number in range(101)}),
        ("artifacts", (FILE,) * 65),
        ("input", {"prompt": "x" * 300_000}),
        ("safety", {"image": {"filter": {}}}),
    ],
)
def test_results_that_no_job_has_are_rejected(field: str, value: Any) -> None:
    assert refused(completed(JobResult(**{field: value}))).startswith(f"result.{field}")


def test_a_result_that_is_large_as_a_whole_is_rejected() -> None:
    assert refused(completed(JobResult(timings={"x" * 300_000: 0.0}))).startswith("result: ")


@pytest.mark.parametrize("number", [-1.0, math.inf, math.nan, 1e300])
def test_numbers_that_nobody_measures_are_rejected(number: float) -> None:
    assert refused(replace(REGISTRATION, price_per_hour=number)).startswith("price_per_hour: ")
    assert refused(Heartbeat(report=replace(REPORT, mean_batch=number))).startswith("report.mean_batch: ")
    for message in (
        Release(lease_token=1, actual_seconds=number),
        Failure(lease_token=1, error=JobError("x", "x"), actual_seconds=number),
        replace(completed(JobResult()), actual_seconds=number),
    ):
        assert refused(message).startswith("actual_seconds: ")
