"""Messages of workers that the store must not receive."""

import math
from dataclasses import replace
from typing import Any

import pytest

from diffuserve.api.workers.worker_validation import (
    check_claim,
    check_completion,
    check_failure,
    check_heartbeat,
    check_registration,
    check_release,
)
from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.jobs.claim import Claim, EnginePlace
from diffuserve.domain.jobs.job import Artifact, Band, JobError, JobResult
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
SPEC = HAND_SPEC.to_dict()


def registration(spec: dict[str, Any], fit: dict[str, Any] | None = None) -> Registration:
    return Registration(models=(ModelOffer(spec=spec, fit=fit),), report=REPORT)


def test_a_valid_registration_is_returned_unchanged() -> None:
    sound = registration(SPEC | {"from_the_future": 1}, FIT)
    assert check_registration(sound) is sound


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
        (SPEC | {"note": "\0"}, "body"),
    ],
)
def test_an_invalid_model_is_rejected(spec: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidParams) as raised:
        check_registration(registration(spec))
    assert raised.value.field == field


@pytest.mark.parametrize(
    "fit", [{}, FIT | {"step": [0]}, FIT | {"decode": [math.nan, 0]}, FIT | {"load_seconds": 1e9}]
)
def test_a_fit_that_cannot_price_a_job_is_rejected(fit: dict[str, Any]) -> None:
    with pytest.raises(InvalidParams, match="fit"):
        check_registration(registration(SPEC, fit))
    with pytest.raises(InvalidParams, match="fits"):
        check_heartbeat(Heartbeat(report=REPORT, fits={"hand": fit}))


def test_a_worker_cannot_report_itself_as_lost() -> None:
    lost = WorkerReport(state=WorkerState.LOST)
    with pytest.raises(InvalidParams, match="cannot report itself as lost"):
        check_heartbeat(Heartbeat(report=lost))
    with pytest.raises(InvalidParams, match="cannot report itself as lost"):
        check_registration(replace(registration(SPEC), report=lost))


@pytest.mark.parametrize("phase", ["x" * 201, "weights\n"])
def test_a_phase_that_no_page_can_show_is_rejected(phase: str) -> None:
    loading = WorkerReport(state=WorkerState.INITIALIZING, loading=LoadProgress(phase=phase))
    with pytest.raises(InvalidParams, match="printable"):
        check_heartbeat(Heartbeat(report=loading))
    with pytest.raises(InvalidParams, match="printable"):
        check_registration(replace(registration(SPEC), report=loading))


@pytest.mark.parametrize("reason", ["x" * 201, "\x1b[31m"])
def test_a_reason_to_drain_that_no_page_can_show_is_rejected(reason: str) -> None:
    with pytest.raises(InvalidParams, match=r"drain_reason.*printable"):
        check_heartbeat(Heartbeat(report=replace(REPORT, drain_reason=reason)))


def test_a_report_that_would_fill_every_view_of_the_workers_is_rejected() -> None:
    check_heartbeat(Heartbeat(report=replace(REPORT, resident_models=("x" * 200,) * 150)))
    with pytest.raises(InvalidParams, match="at most 32,768 bytes"):
        check_heartbeat(Heartbeat(report=replace(REPORT, resident_models=("x" * 200,) * 165)))


HOSTILE = ("a\x1b]52;c;cHduZWQ=\x07", "a\n", "\x9b2J", "\u202egpj", "x" * 201)


@pytest.mark.parametrize("text", HOSTILE)
def test_what_a_terminal_would_not_show_as_it_is_is_rejected(text: str) -> None:
    known = registration(SPEC)
    for field, described in (
        ("name", replace(known, name=text)),
        ("labels", replace(known, labels={"zone": text})),
        ("labels", replace(known, labels={text: "b"})),
        ("device_name", replace(known, report=replace(REPORT, device_name=text))),
        ("resident_models", replace(known, report=replace(REPORT, resident_models=(text,)))),
    ):
        with pytest.raises(InvalidParams, match=rf"{field}.*printable"):
            check_registration(described)
    with pytest.raises(InvalidParams, match=r"error\.code.*printable"):
        check_failure(Failure(lease_token=1, error=JobError(text, "")))
    with pytest.raises(InvalidParams, match=r"claim_id.*printable"):
        check_claim(Claim(claim_id=text, num_jobs=1))


def test_what_a_registration_describes_has_bounds() -> None:
    known = registration(SPEC)
    full = replace(known, name="x" * 200, labels={f"{n:200}": "y" * 200 for n in range(32)})
    assert check_registration(full) is full
    many = tuple(ModelOffer(spec=SPEC | {"name": f"m{n}"}) for n in range(101))
    for field, beyond in (
        ("labels", replace(known, labels={str(n): "" for n in range(33)})),
        ("models", replace(known, models=many)),
        ("price_per_hour", replace(known, price_per_hour=math.inf)),
        ("price_per_hour", replace(known, price_per_hour=-1.0)),
    ):
        with pytest.raises(InvalidParams) as refused:
            check_registration(beyond)
        assert refused.value.field == field
    assert check_registration(replace(known, models=many[:100]))


def test_claims_and_results_have_bounds() -> None:
    for claim in (
        Claim(claim_id="c" * 65, num_jobs=1),
        Claim(claim_id="c", num_jobs=1, models=("m",) * 101),
        Claim(claim_id="c", num_jobs=1, ahead_of={str(n): EnginePlace(band=Band.BATCH) for n in range(101)}),
        Claim(claim_id="c", num_jobs=1, resident_models=("m" * 201,)),
    ):
        with pytest.raises(InvalidParams):
            check_claim(claim)
    for result in (
        JobResult(warnings=("w",) * 101),
        JobResult(warnings=("w" * 1_001,)),
        JobResult(input={"prompt": "p" * 70_000}),
    ):
        with pytest.raises(InvalidParams, match=r"result\."):
            check_completion(Completion(lease_token=1, result=result, actual_seconds=1.0))
    full = JobResult(warnings=("w" * 1_000,) * 100, input={"prompt": "p" * 60_000})
    assert check_completion(Completion(lease_token=1, result=full, actual_seconds=1.0)).result is full


def test_a_long_error_is_cut_and_a_long_code_rejected() -> None:
    told = check_failure(Failure(lease_token=1, error=JobError("broken", "é" * 10_001)))
    assert told.error == JobError("broken", "é" * 10_000)
    with pytest.raises(InvalidParams, match=r"error\.code"):
        check_failure(Failure(lease_token=1, error=JobError("x" * 201, "")))


def test_numbers_too_large_for_the_database_are_rejected() -> None:
    held = HeldLease(job_id="job_1", lease_token=1, step=2**60)
    with pytest.raises(InvalidParams):
        check_heartbeat(Heartbeat(report=REPORT, held=(held,)))
    with pytest.raises(InvalidParams):
        check_claim(Claim(claim_id="c", num_jobs=2**60))


@pytest.mark.parametrize("num_jobs", [0, -1])
def test_a_claim_for_no_job_is_rejected(num_jobs: int) -> None:
    with pytest.raises(InvalidParams, match="num_jobs"):
        check_claim(Claim(claim_id="c", num_jobs=num_jobs))


@pytest.mark.parametrize("seconds", [-1.0, math.inf, math.nan, 1e300])
def test_device_seconds_that_cannot_be_charged_are_rejected(seconds: float) -> None:
    with pytest.raises(InvalidParams, match="actual_seconds"):
        check_completion(Completion(lease_token=1, result=JobResult(), actual_seconds=seconds))
    with pytest.raises(InvalidParams, match="actual_seconds"):
        check_failure(Failure(lease_token=1, error=JobError("x", "x"), actual_seconds=seconds))


FILE = Artifact(
    name="0.png", content_type="image/png", size_bytes=1, sha256="ab" * 32, width=1, height=1, seed=2**62
)


def completed(**result: Any) -> Completion:
    return Completion(lease_token=1, result=JobResult(**({"artifacts": (FILE,)} | result)), actual_seconds=0)


@pytest.mark.parametrize("file", [FILE, replace(FILE, content_type="image/svg+xml", index=15, fps=24)])
def test_files_as_workers_make_them_are_accepted(file: Artifact) -> None:
    completion = completed(artifacts=(file,), timings={"denoise_seconds": 3_600.0})
    assert check_completion(completion) is completion


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", "../../job_2/1/0.png"),
        ("name", ".hidden"),
        ("content_type", "image/png\r\nset-cookie: a=b"),
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
    with pytest.raises(InvalidParams) as raised:
        check_completion(completed(artifacts=(FILE, file)))
    assert raised.value.field == f"result.artifacts.1.{field}"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("timings", {"queue_seconds": math.inf}),
        ("timings", {"queue_seconds": -1.0}),
        ("timings", {"queue_seconds": 1e300}),
        ("timings", {str(number): 0.0 for number in range(101)}),
        ("artifacts", (FILE,) * 65),
        ("input", {"prompt": "x" * 300_000}),
        ("warnings", ("x",) * 101),
        ("warnings", ("x" * 10_001,)),
    ],
)
def test_results_that_no_job_has_are_rejected(field: str, value: object) -> None:
    with pytest.raises(InvalidParams, match=f"result.{field}"):
        check_completion(completed(**{field: value}))


def test_a_result_that_is_large_as_a_whole_is_rejected() -> None:
    with pytest.raises(InvalidParams, match=r"result='.* bytes'"):
        check_completion(completed(timings={"x" * 300_000: 0.0}))


@pytest.mark.parametrize("number", [-1.0, math.inf, math.nan, 1e300])
def test_numbers_that_nobody_measures_are_rejected(number: float) -> None:
    with pytest.raises(InvalidParams, match="price_per_hour"):
        check_registration(replace(registration(SPEC), price_per_hour=number))
    with pytest.raises(InvalidParams, match=r"report\.mean_batch"):
        check_heartbeat(Heartbeat(report=replace(REPORT, mean_batch=number)))
    with pytest.raises(InvalidParams, match="actual_seconds"):
        check_release(Release(lease_token=1, actual_seconds=number))
