"""Finished latents leave one engine and enter another, if both have the same model."""

import dataclasses
from pathlib import Path
from typing import cast

import pytest
import torch

from diffuserve.domain.errors import LatentsUnusable
from diffuserve.domain.workers.worker import LATENTS_ID, LeaseEnd
from diffuserve.engine.engine import Engine
from diffuserve.engine_process.job_input import job_params
from diffuserve.engine_process.output.handover import GivenLatents, LatentTransfer
from diffuserve.protocol.messages import AddJob, JobDenoised, JobFailed, JobFinished
from diffuserve.testing.fake_pipeline import FakePipeline
from support.hosted_engine import NO_FILTER, KeptLink, job, serve

HERE = LatentTransfer("fake-video", lambda: "a" * 64)


def denoised(folder: Path) -> tuple[AddJob, Path]:
    """Have an engine denoise a job, and return it with the file of its latents."""
    folder.mkdir(exist_ok=True)
    first = dataclasses.replace(job("a cloud", folder), until=LeaseEnd.LATENTS)
    link = KeptLink()
    serve(FakePipeline(), NO_FILTER, [first], link)
    (report,) = link.all(JobDenoised)
    second = dataclasses.replace(first, until=LeaseEnd.FILES, files={LATENTS_ID: report.path})
    return second, Path(report.path)


def test_latents_of_the_same_model_are_taken(tmp_path: Path) -> None:
    second, _ = denoised(tmp_path)
    link = KeptLink()
    serve(FakePipeline(), NO_FILTER, [second], link)
    assert len(link.all(JobFinished)) == 1


def test_latents_of_other_weights_are_refused_with_both_hashes(tmp_path: Path) -> None:
    second, path = denoised(tmp_path)
    content = path.read_bytes()
    assert NO_FILTER.weights_hash().encode() in content
    assert given_error(second).startswith("finished latents are of other weights")
    assert "a" * 64 in given_error(second)


@pytest.mark.parametrize("how", ["cut", "flipped header", "empty", "text"])
def test_a_damaged_file_of_latents_is_refused_and_the_error_is_final_for_these_latents(
    how: str, tmp_path: Path
) -> None:
    second, path = denoised(tmp_path)
    content = path.read_bytes()
    damaged = {
        "cut": content[:-7],
        "flipped header": content[:9] + bytes([content[9] ^ 1]) + content[10:],
        "empty": b"",
        "text": b"these are no latents",
    }
    path.write_bytes(damaged[how])
    link = KeptLink()
    serve(FakePipeline(), NO_FILTER, [second], link)
    (failed,) = link.all(JobFailed)
    assert failed.code == LatentsUnusable.code
    assert "latents" in failed.message


def test_a_job_that_brings_no_latents_has_none() -> None:
    with Engine(FakePipeline()) as engine:
        params = engine.spec.resolve(engine.spec.simple_request("x"), seed=0)
    assert HERE.given(AddJob(attempt="a", input={}, folder=""), params) == GivenLatents()


def given_error(second: AddJob) -> str:
    with Engine(FakePipeline()) as engine:
        params = engine.spec.resolve(job_params(second), seed=0)
    with pytest.raises(LatentsUnusable) as caught:
        HERE.given(second, params)
    return str(caught.value)


def test_what_is_handed_over_is_what_was_denoised(tmp_path: Path) -> None:
    second, _ = denoised(tmp_path)
    with Engine(FakePipeline()) as engine:
        params = engine.spec.resolve(job_params(second), seed=0)
        engine.add(params, until_denoised=True)
        results = [output.result for _ in range(20) for output in engine.step() if output.finished]
    latents = cast(torch.Tensor, results[0].latents if results[0] else None)
    own = LatentTransfer("fake-video", NO_FILTER.weights_hash)
    given = own.given(second, params).tensor
    assert given is not None
    assert torch.equal(given, latents)
