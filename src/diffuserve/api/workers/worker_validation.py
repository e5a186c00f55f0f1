"""Validation of workers' messages before they are stored.

The store commits many messages in one transaction, so a message that the database rejects would fail others.
"""

import math
import re
from collections.abc import Mapping, Sequence, Sized
from dataclasses import asdict, fields, replace
from typing import Any, TypeVar

import orjson
from pydantic import TypeAdapter, ValidationError

from diffuserve.domain.backend_urls import LAST_PORT
from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.jobs.checkpoint import NUM_SLOTS, StoredCheckpoint
from diffuserve.domain.jobs.claim import Claim
from diffuserve.domain.jobs.job import Artifact, JobResult
from diffuserve.domain.jobs.progress_report import MAX_PROGRESS_JOBS, WorkerProgress
from diffuserve.domain.models.cost import CostFit
from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.requests.params import MAX_IMAGES, MAX_SEED
from diffuserve.domain.safety import ImagesRecord
from diffuserve.domain.text.json_text import has_null_character
from diffuserve.domain.text.path_parts import FILE_NAME, SHA256
from diffuserve.domain.workers.peers import PeerReport, is_private
from diffuserve.domain.workers.worker import (
    LATENTS_NAME,
    MAX_MODELS_OF_KEY,
    Completion,
    Failure,
    HandOver,
    Heartbeat,
    Registration,
    Release,
    WorkerReport,
    WorkerState,
)

_SPEC = TypeAdapter(ModelSpec)
# The least value of each whole number: 0 where that is the default, and stands for what is not known.
_COUNTS = {field.name: 0 if field.default == 0 else 1 for field in fields(ModelSpec) if field.type is int}
_MAX_NAME = 200
_MAX_PEER_MODELS = 16
_MAX_LABELS = 32
_MAX_CLAIM_ID = 64
_MAX_WARNINGS = 100
_MAX_WARNING_CHARACTERS = 1_000
_MAX_INPUT_BYTES = 65_536  # of a result: what the job was submitted with, and every default
_MAX_RESULT_BYTES = 262_144  # every view of a job reads its result
_MAX_REPORT_BYTES = 32_768  # every view of the workers reads their reports
_MAX_ERROR_CHARACTERS = 10_000  # the operators' view reads the errors of hundreds of jobs
_CONTENT_TYPE = re.compile(r"[a-z]{1,20}/[a-z0-9.+-]{1,80}")
_ROLES = frozenset({"image", "video", "thumbnail", "poster", "sprites"})
_MOST_FILES = 4 * MAX_IMAGES  # an image or three files of a clip for each index, and a thumbnail
_MOST_PIXELS = 65_535  # of a side
_MOST_FPS = 1_000
_MOST_FRAMES = 1_000_000
_MOST_TIMINGS = 50
_MOST_NUMBER = 1e15  # of anything that a worker measures: bytes of memory are the most
_MOST_SECONDS = 3.2e7  # a year
_MOST_LOAD_SECONDS = 3_600.0  # autoscaling adds no worker for work that one load outlasts
Message = TypeVar("Message")


def check_registration(registration: Registration) -> Registration:
    """Return the registration. Raise `InvalidParams` for an invalid model, or descriptions out of bounds."""
    check_storable(registration)
    _check_report(registration.report)
    _check_description(registration)
    _check_number("models", registration.models, MAX_MODELS_OF_KEY)
    names: set[str] = set()
    for number, offer in enumerate(registration.models):
        _check_spec(f"models.{number}.spec", offer.spec)
        if offer.spec["name"] in names:
            raise InvalidParams(f"models.{number}.spec.name", offer.spec["name"], "is offered twice")
        names.add(offer.spec["name"])
        if offer.fit is not None:
            _check_fit(f"models.{number}.fit", offer.fit)
    return registration


def check_heartbeat(heartbeat: Heartbeat) -> Heartbeat:
    """Return the heartbeat. Raise `InvalidParams` for an impossible report or an invalid fit."""
    check_storable(heartbeat)
    _check_report(heartbeat.report)
    for held in heartbeat.held:
        _check_amount("held.step", held.step)
        _check_amount("held.total", held.total)
    for model, fit in heartbeat.fits.items():
        _check_fit(f"fits.{model}", fit)
    return heartbeat


def check_progress(progress: WorkerProgress) -> WorkerProgress:
    """Return the progress. Raise `InvalidParams` for too many jobs, or with a preview of one."""
    if len(progress.jobs) > MAX_PROGRESS_JOBS:
        raise InvalidParams("jobs", f"{len(progress.jobs)} of them", f"are at most {MAX_PROGRESS_JOBS}")
    if any(advanced.report.preview is not None for advanced in progress.jobs):
        raise InvalidParams("preview", "a file", "is reported with its job alone, by its lease")
    return progress


def check_claim(claim: Claim) -> Claim:
    """Return the claim. Raise `InvalidParams` if it asks for no job, or names too much."""
    if claim.num_jobs < 1:
        raise InvalidParams("num_jobs", claim.num_jobs, "must be at least 1")
    _check_printable("claim_id", claim.claim_id, _MAX_CLAIM_ID)
    for field in ("models", "resident_models", "ahead_of"):
        _check_number(field, getattr(claim, field), MAX_MODELS_OF_KEY)
        for model in getattr(claim, field):
            _check_printable(field, model)
    return check_storable(claim)


def check_completion(completion: Completion) -> Completion:
    """Return the completion. Raise `InvalidParams` for files that none can be, and for impossible numbers.

    The name of a file becomes part of a path, its content type and its hash become headers.
    """
    check_text(replace(completion, contents={}))  # which are not stored as text
    result = completion.result
    _check_amount("actual_seconds", completion.actual_seconds)
    _check_safety("result.safety", result.safety)
    _check_size(result)
    for name, seconds in result.timings.items():
        _check_amount(f"result.timings.{name}", seconds, _MOST_SECONDS)
    for number, artifact in enumerate(result.artifacts):
        _check_artifact(f"result.artifacts.{number}", artifact)
    return completion


def check_hand_over(report: HandOver) -> HandOver:
    """Return the report of finished latents. Raise `InvalidParams` for impossible sizes or seconds."""
    check_storable(report)
    _check_amount("actual_seconds", report.actual_seconds)
    if report.size_bytes < 1:
        raise InvalidParams("size_bytes", report.size_bytes, "must be at least 1")
    for name in ("sha256", "weights"):
        if not SHA256.fullmatch(getattr(report, name)):
            raise InvalidParams(name, getattr(report, name), "is not a sha256 in hexadecimal")
    return report


def check_checkpoint(stored: StoredCheckpoint) -> StoredCheckpoint:
    """Return the report of a checkpoint. Raise `InvalidParams` for an impossible step, slot or size."""
    check_storable(stored)
    if not 0 <= stored.slot < NUM_SLOTS:
        raise InvalidParams("slot", stored.slot, f"must be within 0…{NUM_SLOTS - 1}")
    for name in ("step", "size_bytes"):
        if getattr(stored, name) < 1:
            raise InvalidParams(name, getattr(stored, name), "must be at least 1")
    if not SHA256.fullmatch(stored.sha256):
        raise InvalidParams("sha256", stored.sha256, "is not a sha256 in hexadecimal")
    return stored


def check_failure(failure: Failure) -> Failure:
    """Return the failure, its message cut to 10,000 characters.

    Raise `InvalidParams` for impossible device-seconds, an invalid verdict or a code that is none.
    """
    check_text(failure)
    _check_amount("actual_seconds", failure.actual_seconds)
    _check_safety("error.safety", failure.error.safety)
    error = failure.error
    _check_printable("error.code", error.code)
    return replace(failure, error=replace(error, message=error.message[:_MAX_ERROR_CHARACTERS]))


def check_release(release: Release) -> Release:
    """Return the release. Raise `InvalidParams` for impossible device-seconds."""
    _check_amount("actual_seconds", release.actual_seconds)
    return release


def check_storable(message: Message) -> Message:
    """Return the message. Raise `InvalidParams` for integers above 2**53 and text that PostgreSQL rejects."""
    return check_text(message, orjson.OPT_STRICT_INTEGER)


def check_text(message: Message, option: int = 0) -> Message:
    """Return the message. Raise `InvalidParams` for text that PostgreSQL rejects."""
    try:
        text = orjson.dumps(message, option=option)
    except TypeError as error:
        raise InvalidParams("body", "…", f"cannot be stored as JSON: {error}") from error
    if has_null_character(text):
        raise InvalidParams("body", "\0", "text must not contain the character U+0000")
    return message


def _check_safety(field: str, safety: Mapping[str, Any]) -> None:
    for stage, record in safety.items():
        try:
            ImagesRecord.from_dict(record)
        except ValueError as error:
            raise InvalidParams(f"{field}.{stage}", record, str(error)) from error


def _check_artifact(field: str, artifact: Artifact) -> None:
    """Raise `InvalidParams` for a file that no worker makes."""
    texts = {
        "name": bool(FILE_NAME.fullmatch(artifact.name)) and artifact.name != LATENTS_NAME,
        "content_type": bool(_CONTENT_TYPE.fullmatch(artifact.content_type)),
        "sha256": bool(SHA256.fullmatch(artifact.sha256)),
        "role": artifact.role in _ROLES,
    }
    for name, is_valid in texts.items():
        if not is_valid:
            raise InvalidParams(f"{field}.{name}", getattr(artifact, name), f"is no {name} of a file")
    numbers = {
        "size_bytes": (artifact.size_bytes, 1, int(_MOST_NUMBER)),
        "width": (artifact.width, 1, _MOST_PIXELS),
        "height": (artifact.height, 1, _MOST_PIXELS),
        "index": (artifact.index, 0, MAX_IMAGES - 1),
        "seed": (artifact.seed, 0, MAX_SEED),
        "num_frames": (artifact.num_frames, 1, _MOST_FRAMES),
        "fps": (artifact.fps, 1, _MOST_FPS),
    }
    for name, (value, least, most) in numbers.items():
        if value is not None and not least <= value <= most:
            raise InvalidParams(f"{field}.{name}", value, f"must be within {least}…{most}")


def _check_amount(field: str, value: float | None, most: float = _MOST_NUMBER) -> None:
    """Raise `InvalidParams` for a number that nobody measures: not finite, negative or huge."""
    if value is not None and not (math.isfinite(value) and 0 <= value <= most):
        raise InvalidParams(field, value, f"must be within 0…{most:g}")


def _check_amounts(field: str, value: object) -> None:
    """Check the numbers within a report, however deep."""
    if isinstance(value, Mapping):
        for name, part in value.items():
            _check_amounts(f"{field}.{name}", part)
    elif isinstance(value, list | tuple):
        for part in value:
            _check_amounts(field, part)
    elif isinstance(value, int | float):
        _check_amount(field, value)


def _check_report(report: WorkerReport) -> None:
    """Raise `InvalidParams` for what no worker reports of itself; `/` and `/readyz` show its phase to all."""
    if report.state is WorkerState.LOST:
        raise InvalidParams("report.state", report.state, "a worker cannot report itself as lost")
    size = len(orjson.dumps(report))
    if size > _MAX_REPORT_BYTES:
        raise InvalidParams("report", f"{size:,} bytes", f"has at most {_MAX_REPORT_BYTES:,} bytes")
    _check_amounts("report", asdict(report))
    _check_peers(report.peers)
    for name, text in (
        ("loading.phase", "" if report.loading is None else report.loading.phase),
        ("drain_reason", report.drain_reason),
        ("device_name", report.device_name),
        ("quantization", report.quantization or ""),
        *(("resident_models", model) for model in report.resident_models),
        *(("withdrawn_models", text) for pair in report.withdrawn_models.items() for text in pair),
    ):
        _check_printable(f"report.{name}", text)


def _check_description(registration: Registration) -> None:
    """Raise `InvalidParams` for a name or labels that fill or forge what operators see, or an odd price."""
    _check_printable("name", registration.name)
    _check_number("labels", registration.labels, _MAX_LABELS)
    for pair in registration.labels.items():
        for text in pair:
            _check_printable("labels", text)
    _check_amount("price_per_hour", registration.price_per_hour)


def _check_size(result: JobResult) -> None:
    """Raise `InvalidParams` for a result that is larger than what workers tell."""
    _check_number("result.artifacts", result.artifacts, _MOST_FILES)
    _check_number("result.timings", result.timings, _MOST_TIMINGS)
    _check_number("result.warnings", result.warnings, _MAX_WARNINGS)
    for warning in result.warnings:
        if len(warning) > _MAX_WARNING_CHARACTERS:
            remedy = f"has at most {_MAX_WARNING_CHARACTERS:,} characters"
            raise InvalidParams("result.warnings", warning, remedy)
    bounds = (("result.input", result.input, _MAX_INPUT_BYTES), ("result", result, _MAX_RESULT_BYTES))
    for field, part, most in bounds:
        if (size := len(orjson.dumps(part))) > most:
            raise InvalidParams(field, f"{size:,} bytes", f"has at most {most:,} bytes")


def _check_number(field: str, found: Sized, most: int) -> None:
    if len(found) > most:
        raise InvalidParams(field, f"{len(found)} of them", f"are at most {most}")


def _check_printable(field: str, text: str, most: int = _MAX_NAME) -> None:
    """Raise `InvalidParams` for text that is long, or that a terminal or a page would not show as it is."""
    if len(text) > most or not text.isprintable():
        raise InvalidParams(field, text, f"has at most {most} printable characters")


def _check_peers(peers: Sequence[PeerReport]) -> None:
    """Raise `InvalidParams` for a peer at several hosts, or outside of private networks."""
    if len(peers) > _MAX_PEER_MODELS:
        raise InvalidParams("report.peers", f"{len(peers)} of them", f"are at most {_MAX_PEER_MODELS}")
    if len({peer.address.host for peer in peers}) > 1:
        raise InvalidParams("report.peers", "several hosts", "a worker listens at one")
    for peer in peers:
        host, port = peer.address.host, peer.address.port
        if not SHA256.fullmatch(peer.model):
            raise InvalidParams("report.peers.model", peer.model, "is not a hash in hexadecimal")
        if not is_private(host):
            raise InvalidParams("report.peers.address", host, "is no address of a private network")
        if not 0 < port <= LAST_PORT:
            raise InvalidParams("report.peers.address", port, "is no port")


def _check_spec(field: str, values: Mapping[str, Any]) -> None:
    try:
        spec = _SPEC.validate_json(orjson.dumps(values), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        path = ".".join(map(str, (field, *first["loc"])))
        raise InvalidParams(path, first["input"], first["msg"]) from error
    if not 0 < len(spec.name) <= _MAX_NAME or not spec.name.isprintable():
        raise InvalidParams(f"{field}.name", spec.name, f"must have 1…{_MAX_NAME} printable characters")
    for name, least in _COUNTS.items():
        if getattr(spec, name) < least:
            raise InvalidParams(f"{field}.{name}", getattr(spec, name), f"must be at least {least}")


def _check_fit(field: str, values: Mapping[str, Any]) -> None:
    try:
        fit = CostFit.from_dict(values)
    except ValueError as error:
        raise InvalidParams(field, values, str(error)) from error
    _check_amount(f"{field}.load_seconds", fit.load_seconds, _MOST_LOAD_SECONDS)
