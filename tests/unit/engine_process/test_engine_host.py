"""The engine host: jobs in, messages and files out."""

import base64
import hashlib
import io
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from PIL import Image

from diffuserve.domain.errors import OutputBlocked, RequestFailed
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.domain.safety import Action, FilterInfo
from diffuserve.engine.config import EngineConfig
from diffuserve.engine.engine import Engine
from diffuserve.engine.outputs import GenerationResult, Timings
from diffuserve.engine_process.agent_link import AgentLink
from diffuserve.engine_process.engine_host import EngineHost
from diffuserve.engine_process.output.image_output import ImageOutput, in_background, open_image_output
from diffuserve.media.image_file import read_parameters
from diffuserve.models.frames import Media
from diffuserve.protocol.config import ImageOptions
from diffuserve.protocol.messages import (
    AddJob,
    EngineReady,
    FilterVerdict,
    JobFailed,
    JobFinished,
    PreviewReady,
    StepProgress,
    StopEngine,
)
from diffuserve.testing.fake_pipeline import FakePipeline
from support.hosted_engine import NO_FILTER, KeptLink, ScriptedFilter, job, serve
from support.pretend_cuda import pretend_cuda
from support.waiting import HANG_SECONDS


def digest(image: Image.Image) -> str:
    return hashlib.sha256(image.tobytes()).hexdigest()


def test_jobs_of_a_higher_band_step_first_in_the_engine(fake: FakePipeline, tmp_path: Path) -> None:
    order: list[str] = []

    def note(requests: list[GenerationParams]) -> None:
        order.extend(params.prompt for params in requests if params.prompt not in order)

    fake.on_denoise = cast(Any, note)
    with Engine(fake, EngineConfig(token_budget=1)) as engine:  # one request a step
        host = EngineHost(engine, cast(AgentLink, KeptLink()), NO_FILTER)
        for number, (prompt, priority) in enumerate([("batch", -2), ("standard", -1), ("interactive", 0)]):
            params = {"prompt": prompt, "width": 32, "height": 32, "seed": number}
            host.handle(AddJob(attempt=prompt, input=params, folder=str(tmp_path), priority=priority))
        for _ in range(100):
            if len(order) == 3:
                break
            engine.step()
    assert order == ["interactive", "standard", "batch"]


def test_the_steps_of_requests_that_step_together_are_sent_together(
    fake: FakePipeline, tmp_path: Path
) -> None:
    link, jobs = KeptLink(), [job(name, tmp_path) for name in ("one", "two")]
    with Engine(fake, EngineConfig(token_budget=10_000)) as engine:
        host = EngineHost(engine, cast(AgentLink, link), NO_FILTER)
        for each in jobs:
            host.handle(each)
        running = threading.Thread(target=host.run)
        running.start()
        link.wait_for(lambda: len(link.all(JobFinished)) == len(jobs))
        host.handle(StopEngine())
        running.join(HANG_SECONDS)
    attempts = [
        tuple(each.attempt for each in sent if isinstance(each, StepProgress) and each.phase == "denoise")
        for sent in link.sends
    ]
    assert {stepped for stepped in attempts if stepped} == {("one", "two")}


def test_a_blocked_image_fails_its_own_job_alone(fake: FakePipeline, tmp_path: Path) -> None:
    """INV-7, and INV-3 for the others."""
    serve(fake, NO_FILTER, [job("harmless", tmp_path)])
    with Image.open(tmp_path / "harmless" / "0.png") as image:
        known = digest(image)
    for path in (tmp_path / "harmless").iterdir():
        path.unlink()

    flagging = ScriptedFilter(lambda image: Action.BLOCK if digest(image) == known else Action.ALLOW)
    jobs = [job(prompt, tmp_path) for prompt in ("harmless", "another", "a third")]
    link = serve(fake, ImageOutput(flagging, "fake"), jobs)
    (failed,) = link.all(JobFailed)
    assert (failed.attempt, failed.code, failed.retryable) == ("harmless", "output_blocked", False)
    assert "'nsfw'" in failed.message
    assert "harmless" not in failed.message, "the prompt"
    assert list((tmp_path / "harmless").iterdir()) == [], "nothing of it was written"
    assert {done.attempt for done in link.all(JobFinished)} == {"another", "a third"}
    assert flagging.threads <= {"file-writer_0", "file-writer_1"}, "never the thread that steps"


def test_a_blocked_image_blocks_all_images_of_its_request(fake: FakePipeline, tmp_path: Path) -> None:
    actions = iter([Action.ALLOW, Action.ALLOW, Action.BLOCK, Action.ALLOW])
    flagging = ScriptedFilter(lambda _: next(actions))
    link = serve(fake, ImageOutput(flagging, "fake"), [job("four", tmp_path, params={"num_images": 4})])
    assert [failed.code for failed in link.all(JobFailed)] == ["output_blocked"]
    assert list((tmp_path / "four").iterdir()) == []
    assert [verdict.action for verdict in link.all(FilterVerdict)] == ["allow", "allow", "block", "allow"]


def test_a_blurred_image_is_written_blurred_with_a_warning(fake: FakePipeline, tmp_path: Path) -> None:
    fake.poison = lambda params, prediction: prediction * 0.3  # leaves noise, so that there is detail
    size = {"width": 128, "height": 128}
    plain = serve(fake, NO_FILTER, [job("plain", tmp_path, params=size)])
    blur = ScriptedFilter(lambda _: Action.BLUR)
    link = serve(fake, ImageOutput(blur, "fake"), [job("blur", tmp_path, params=size)])
    (done,) = link.all(JobFinished)
    assert done.warnings == ("image 0 was blurred by the image filter (category 'nsfw')",)
    verdict = {
        "action": "blur",
        "findings": [{"category": "nsfw", "action": "blur", "source": "test", "score": 0.9}],
    }
    assert done.safety == {"image": {"filter": asdict(blur.info), "verdicts": [verdict]}}
    assert plain.all(JobFinished)[0].safety == {}, "no filter, no record"
    for name in ("0.png", "thumbnail.webp"):
        assert roughness(tmp_path / "blur" / name) < 0.5 * roughness(tmp_path / "plain" / name)


def roughness(path: Path) -> float:
    """Return the mean difference between neighboring pixels."""
    with Image.open(path) as image:
        levels = np.asarray(image.convert("RGB"), dtype=float)
    return float(np.abs(np.diff(levels, axis=1)).mean())


def test_a_failing_filter_lets_no_image_pass_and_the_job_is_retryable(
    fake: FakePipeline, tmp_path: Path
) -> None:
    def fail(_image: Image.Image) -> Action:
        raise ValueError("the weights are gone")

    link = serve(fake, ImageOutput(ScriptedFilter(fail), "fake"), [job("star", tmp_path, num_previews=2)])
    (failed,) = link.all(JobFailed)
    assert (failed.code, failed.retryable) == ("internal_error", True)
    assert "the image filter test failed (ValueError: the weights are gone)" in failed.message
    assert link.all(PreviewReady) == []
    assert list((tmp_path / "star").iterdir()) == []


def test_messages_about_a_job_stay_in_order_when_the_filter_is_slow(
    fake: FakePipeline, tmp_path: Path
) -> None:
    first = threading.Event()

    def slow_at_first(_image: Image.Image) -> Action:
        if not first.is_set():
            first.set()
            threading.Event().wait(0.2)
        return Action.ALLOW

    jobs = [job(prompt, tmp_path, num_previews=3) for prompt in ("first", "second", "third")]
    link = serve(fake, ImageOutput(ScriptedFilter(slow_at_first), "fake"), jobs)
    for attempt in ("first", "second", "third"):
        messages = [message for message in link.sent if getattr(message, "attempt", None) == attempt]
        reported = [
            message.index if isinstance(message, PreviewReady) else "done"
            for message in messages
            if isinstance(message, PreviewReady | JobFinished)
        ]
        assert reported == [0, 1, 2, "done"]
        stages = [message.stage for message in messages if isinstance(message, FilterVerdict)]
        assert stages == ["preview", "preview", "preview", "image"]
    assert all(verdict.seconds >= 0 for verdict in link.all(FilterVerdict))


def test_steps_go_on_while_the_filter_checks_a_preview(fake: FakePipeline, tmp_path: Path) -> None:
    """Previews wait for the filter, but the thread that steps does not."""
    looked_at = threading.Event()
    released = threading.Event()

    def hold(_image: Image.Image) -> Action:
        looked_at.set()
        assert released.wait(HANG_SECONDS)
        return Action.ALLOW

    link = KeptLink()
    with Engine(fake, EngineConfig(token_budget=10_000)) as engine:
        host = EngineHost(engine, cast(AgentLink, link), ImageOutput(ScriptedFilter(hold), "fake"))
        running = threading.Thread(target=host.run)
        running.start()
        host.handle(job("star", tmp_path, num_previews=3))
        link.wait_for(lambda: any(progress.phase == "decode" for progress in link.all(StepProgress)))
        assert looked_at.wait(HANG_SECONDS)
        assert link.all(PreviewReady) == []
        released.set()
        link.wait_for(lambda: len(link.all(JobFinished)) == 1)
        host.handle(StopEngine())
        running.join(HANG_SECONDS)
    assert len(link.all(PreviewReady)) == 3


@pytest.mark.parametrize(("action", "num_shown"), [(Action.BLOCK, 0), (Action.BLUR, 2), (Action.FLAG, 2)])
def test_previews_pass_the_same_filter(
    fake: FakePipeline, tmp_path: Path, action: Action, num_shown: int
) -> None:
    previews_only = ScriptedFilter(lambda image: action if image.width == 128 else Action.ALLOW)
    shown = serve(fake, ImageOutput(previews_only, "fake"), [job("a", tmp_path, num_previews=2)]).all(
        PreviewReady
    )
    plain = serve(fake, NO_FILTER, [job("a", tmp_path, num_previews=2)]).all(PreviewReady)
    assert len(shown) == num_shown
    assert len(plain) == 2
    for ours, theirs in zip(shown, plain, strict=False):
        with decoded(ours) as image, decoded(theirs) as reference:
            assert image.size == reference.size


def test_each_image_of_a_job_has_its_own_previews(fake: FakePipeline, tmp_path: Path) -> None:
    wanted = job("star", tmp_path, params={"num_images": 2}, num_previews=2)
    link = serve(fake, NO_FILTER, [wanted])
    shown = [(preview.step, preview.image, preview.index) for preview in link.all(PreviewReady)]
    assert [(image, index) for _, image, index in shown] == [(0, 0), (1, 0), (0, 1), (1, 1)]
    assert [step for step, _, _ in shown] == sorted(step for step, _, _ in shown)


def decoded(preview: PreviewReady) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(preview.png)))


@pytest.mark.parametrize(("device", "num_ranks", "seen"), [("cuda:0", 1, 1), ("cuda:0", 4, 4), ("cpu", 1, 0)])
def test_a_ready_engine_counts_the_gpus_that_it_uses(
    monkeypatch: pytest.MonkeyPatch, device: str, num_ranks: int, seen: int
) -> None:
    link = KeptLink()
    with pretend_cuda(), monkeypatch.context() as machine:
        machine.setattr(torch.cuda, "device_count", lambda: 8)
        with Engine(FakePipeline(device=torch.device(device))) as engine:
            engine.runner.num_ranks = num_ranks
            host = EngineHost(engine, cast(AgentLink, link), NO_FILTER)
            host.handle(StopEngine())
            host.run()
    [ready] = link.all(EngineReady)
    assert ready.num_gpus == seen
    assert ready.device_name == ("pretended GPU" if seen else "")


def test_a_ready_engine_names_its_filter(fake: FakePipeline, tmp_path: Path) -> None:
    (ready,) = serve(fake, ImageOutput(ScriptedFilter(lambda _: Action.ALLOW), "fake"), []).all(EngineReady)
    assert ready.image_filter == FilterInfo("test", "1", {"nsfw": 0.5})
    assert ready.description["image_filter"] == "test 1 (nsfw from 0.5)"
    (bare,) = serve(fake, NO_FILTER, []).all(EngineReady)
    assert bare.image_filter is None
    assert bare.description["image_filter"] == "none"


@pytest.mark.parametrize("output_format", ["png", "webp", "jpg"])
def test_every_file_carries_its_parameters(fake: FakePipeline, tmp_path: Path, output_format: str) -> None:
    images = ImageOutput(None, "fake-video", in_background(lambda: "ab12"))
    wanted = job("über 🟦", tmp_path, params={"num_images": 2}, output_format=output_format)
    (done,) = serve(fake, images, [wanted]).all(JobFinished)
    parameters = [read_parameters(Path(file.path)) for file in done.files]
    assert [(read["prompt"], read["seed"], read["num_images"]) for read in parameters] == [
        ("über 🟦", 1, 1),
        ("über 🟦", 2, 1),
        ("über 🟦", 1, 1),
    ]
    assert {(read["model"], read["model_hash"]) for read in parameters} == {("fake-video", "ab12")}


def test_files_without_metadata_carry_no_parameters(fake: FakePipeline, tmp_path: Path) -> None:
    images = ImageOutput(None, "fake", has_metadata=False)
    (done,) = serve(fake, images, [job("a star", tmp_path)]).all(JobFinished)
    for file in done.files:
        assert read_parameters(Path(file.path)) == {}
        assert b"a star" not in Path(file.path).read_bytes()


def test_the_image_output_of_a_model_knows_its_filter_and_its_weights() -> None:
    images = open_image_output(
        "tiny-flux", ImageOptions(image_rules={"nsfw": {"threshold": 0.5, "action": "blur"}})
    )
    assert images.image_filter is not None
    assert images.image_filter.info.thresholds == {"nsfw": 0.5}
    assert images.model == "tiny-flux"
    assert images.model_hash is not None
    assert len(images.model_hash.result(HANG_SECONDS) or "") == 64
    silent = open_image_output("tiny-flux", ImageOptions(image_filter="none", file_metadata=False))
    assert (silent.image_filter, silent.model_hash) == (None, None)


def test_an_error_in_the_background_is_raised_where_the_result_is_asked_for() -> None:
    def fail() -> str:
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        in_background(fail).result(HANG_SECONDS)


def test_a_result_outside_a_job_passes_the_same_filter() -> None:
    """The command line runs an engine without an agent."""
    result = drawn()
    blur = ImageOutput(ScriptedFilter(lambda _: Action.BLUR), "fake").screened(result)
    assert blur.images[0].tobytes() != result.images[0].tobytes()
    assert blur.warnings == ("cut", "image 0 was blurred by the image filter (category 'nsfw')")
    assert ImageOutput(ScriptedFilter(lambda _: Action.ALLOW), "fake").screened(result) == result
    with pytest.raises(OutputBlocked, match="'nsfw'"):
        ImageOutput(ScriptedFilter(lambda _: Action.BLOCK), "fake").screened(result)


def test_a_failing_filter_fails_a_result_outside_a_job() -> None:
    def fail(_image: Image.Image) -> Action:
        raise OSError("gone")

    with pytest.raises(RequestFailed, match="the image filter test failed"):
        ImageOutput(ScriptedFilter(fail), "fake").screened(drawn())


def drawn() -> GenerationResult:
    noise = Image.effect_noise((64, 64), 90).convert("RGB")
    params = GenerationParams(prompt="a star", seed=1)
    return GenerationResult(
        "r", params, [Media([noise])], Timings(0.0, 0.0, 0.0, 0.0, 0.0, 0.0), warnings=("cut",)
    )


def test_an_error_of_the_decode_lane_ends_the_host(
    fake: FakePipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process then ends with a traceback, and the agent's supervisor starts another."""
    with Engine(fake, EngineConfig(token_budget=10_000, num_threads=1)) as engine:
        monkeypatch.setattr(engine.cost_model, "expected_decode_seconds", Mock(side_effect=SystemError))
        host = EngineHost(engine, cast(AgentLink, KeptLink()), NO_FILTER)
        host.handle(job("star", tmp_path))
        with pytest.raises(SystemError):
            host.run()


def test_a_job_that_skips_steps_reports_those_that_it_takes(fake: FakePipeline, tmp_path: Path) -> None:
    """Count what is left of the schedule, for previews too."""
    Image.new("RGB", (32, 32), "red").save(tmp_path / "red.png")
    params = {
        "image": {"id": "file-red", "width": 32, "height": 32},
        "strength": 0.5,
        "num_inference_steps": 8,
    }
    files = {"file-red": str(tmp_path / "red.png")}
    link = serve(fake, NO_FILTER, [job("edited", tmp_path, params=params, num_previews=3, files=files)])
    assert [(report.step, report.total) for report in link.all(StepProgress)] == [
        *((step, 4) for step in (1, 2, 3, 4)),
        (4, 4),  # shown to the filter
    ]
    assert [preview.step for preview in link.all(PreviewReady)] == [1, 2, 3]
