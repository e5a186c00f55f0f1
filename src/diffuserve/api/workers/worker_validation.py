"""Checks of workers' messages beyond their types, before they are stored.

The store commits many messages in one transaction, so a message that the database rejects would fail others.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

import orjson

from diffuserve.domain.codec import from_values
from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.jobs.job import Artifact, JobResult
from diffuserve.domain.jobs.progress_report import WorkerProgress
from diffuserve.domain.models.cost import CostFit
from diffuserve.domain.safety import ImagesRecord
from diffuserve.domain.text.json_text import has_null_character
from diffuserve.domain.workers.worker import (
    LATENTS_NAME,
    Completion,
    Failure,
    Heartbeat,
    Registration,
    WorkerReport,
    WorkerState,
)

_ROLES = ("image", "video", "audio", "thumbnail", "poster", "sprites")
_MAX_INPUT_BYTES = 65_536  # of a result: what the job was submitted with, and every default
_MAX_RESULT_BYTES = 262_144  # every view of a job reads its result
_MAX_REPORT_BYTES = 32_768  # every view of the workers reads their reports
_MAX_ERROR_CHARACTERS = 10_000  # the operators' view reads the errors of hundreds of jobs
_MAX_LOAD_SECONDS = 3_600.0  # autoscaling adds no worker for work that one load outlasts
Message = TypeVar("Message")


def check_registration(registration: Registration) -> Registration:
    """Return the registration. Raise `InvalidParams` for a model that is offered twice, or a report."""
    check_storable(registration)
    _check_report(registration.report)
    names: set[str] = set()
    for number, offer in enumerate(registration.models):
        if offer.spec.name in names:
            raise InvalidParams(f"models.{number}.spec.name", offer.spec.name, "is offered twice")
        names.add(offer.spec.name)
        if offer.fit is not None:
            _check_fit(f"models.{number}.fit", offer.fit)
    return registration


def check_heartbeat(heartbeat: Heartbeat) -> Heartbeat:
    """Return the heartbeat. Raise `InvalidParams` for an impossible report or fit."""
    check_storable(heartbeat)
    _check_report(heartbeat.report)
    for model, fit in heartbeat.fits.items():
        _check_fit(f"fits.{model}", fit)
    return heartbeat


def check_progress(progress: WorkerProgress) -> WorkerProgress:
    """Return the progress. Raise `InvalidParams` if it has a preview of a job."""
    if any(advanced.report.preview is not None for advanced in progress.jobs):
        raise InvalidParams("preview", "a file", "is reported with its job alone, by its lease")
    return progress


def check_completion(completion: Completion) -> Completion:
    """Return the completion. Raise `InvalidParams` for a result that is too large, or a file's name."""
    check_text(replace(completion, contents={}))  # which are not stored as text
    result = completion.result
    _check_safety("result.safety", result.safety)
    _check_size(result)
    for number, artifact in enumerate(result.artifacts):
        _check_artifact(f"result.artifacts.{number}", artifact)
    return completion


def check_failure(failure: Failure) -> Failure:
    """Return the failure, its message cut to 10,000 characters. Raise `InvalidParams` for a verdict."""
    check_text(failure)
    _check_safety("error.safety", failure.error.safety)
    error = failure.error
    return replace(failure, error=replace(error, message=error.message[:_MAX_ERROR_CHARACTERS]))


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
            from_values(ImagesRecord, record)
        except ValueError as error:
            raise InvalidParams(f"{field}.{stage}", record, "is no record of images") from error


def _check_artifact(field: str, artifact: Artifact) -> None:
    """Raise `InvalidParams` for a file that no worker makes. Clients read roles of later versions too."""
    if artifact.name == LATENTS_NAME:
        raise InvalidParams(f"{field}.name", artifact.name, "is that of latents")
    if artifact.role not in _ROLES:
        raise InvalidParams(f"{field}.role", artifact.role, f"must be one of {', '.join(_ROLES)}")


def _check_report(report: WorkerReport) -> None:
    """Raise `InvalidParams` for an impossible report; `/` and `/readyz` show its phase to everybody."""
    if report.state is WorkerState.LOST:
        raise InvalidParams("report.state", report.state, "a worker cannot report itself as lost")
    _check_bytes("report", report, _MAX_REPORT_BYTES)
    if len({peer.address.host for peer in report.peers}) > 1:
        raise InvalidParams("report.peers", "several hosts", "a worker listens at one")


def _check_size(result: JobResult) -> None:
    """Raise `InvalidParams` for a result that is larger than what workers tell."""
    _check_bytes("result.input", result.input, _MAX_INPUT_BYTES)
    _check_bytes("result", result, _MAX_RESULT_BYTES)


def _check_bytes(field: str, part: object, most: int) -> None:
    if (size := len(orjson.dumps(part))) > most:
        raise InvalidParams(field, f"{size:,} bytes", f"has at most {most:,} bytes")


def _check_fit(field: str, fit: CostFit) -> None:
    if fit.load_seconds > _MAX_LOAD_SECONDS:
        raise InvalidParams(f"{field}.load_seconds", fit.load_seconds, f"is at most {_MAX_LOAD_SECONDS:g}")
