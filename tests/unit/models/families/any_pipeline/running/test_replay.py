"""A run that begins anew does no pass again, and takes over what was kept, or refuses what does not fit."""

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from diffuserve.domain.errors import CheckpointUnusable
from diffuserve.models.families.any_pipeline.running.hooks import hook_models, own_copy
from diffuserve.models.families.any_pipeline.running.passes import Passes, Sharing
from diffuserve.models.families.any_pipeline.running.replay import Replay, Replies
from diffuserve.models.families.any_pipeline.running.run import Run
from diffuserve.models.families.any_pipeline.running.steps_told import StepsTold
from diffuserve.models.pipelines.run_progress import RunProgress

NUM_STEPS = 4


class Scheduler:
    """Adds a prediction, the one before it, and noise."""

    def set_timesteps(self, count: int) -> None:
        self.timesteps = torch.arange(count)
        self.before: list[Tensor | None] = [None]

    def step(self, prediction: Tensor, latents: Tensor, generator: torch.Generator) -> tuple[Tensor]:
        noise = torch.randn(latents.shape, generator=generator)
        (before,), self.before = self.before, [prediction]
        return (latents + prediction + noise + (0 if before is None else before),)


class Denoiser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.num_passes = 0

    def forward(self, latents: Tensor) -> tuple[Tensor]:
        self.num_passes += 1
        return (latents.cos(),)


class Pipe:
    """Denoises a picture and its sound, each with a scheduler of its own, by two passes a step."""

    def __init__(self) -> None:
        self.transformer, self.scheduler, self.audio_scheduler = Denoiser(), Scheduler(), Scheduler()
        hook_models({"transformer": self.transformer})

    @property
    def components(self) -> dict[str, Any]:
        names = ("transformer", "scheduler", "audio_scheduler")
        return {name: getattr(self, name) for name in names}

    def __call__(self, generator: torch.Generator) -> list[Tensor]:
        schedulers = (self.scheduler, self.audio_scheduler)
        latents = [torch.randn(1, size, generator=generator) for size in (6, 3)]
        for scheduler in schedulers:
            scheduler.set_timesteps(NUM_STEPS)
        with self.progress_bar(total=NUM_STEPS) as bar:  # type: ignore[attr-defined]
            for _ in range(NUM_STEPS):
                predictions = [self.transformer(each)[0] for each in latents]
                pairs = zip(schedulers, predictions, latents, strict=True)
                latents = [scheduler.step(made, each, generator)[0] for scheduler, made, each in pairs]
                bar.update()
        return latents


@pytest.fixture
def pipe() -> Pipe:
    return Pipe()


def begin(pipe: Pipe, replies: Replies, begins_at: RunProgress) -> Run:
    steps, generator = StepsTold(NUM_STEPS), torch.Generator().manual_seed(3)
    own = own_copy(pipe, steps)
    return Run(lambda: own(generator), threading.Lock(), steps, Replay(generator, replies, begins_at))


def lead(run: Run, index: int = NUM_STEPS) -> RunProgress:
    Passes(Sharing.NONE).lead([run], lambda run: run.steps.has_done(index, NUM_STEPS))
    assert run.replay is not None
    return run.replay.progress()


def result(pipe: Pipe, begins_at: RunProgress, replies: Replies | None = None) -> Sequence[Tensor]:
    run = begin(pipe, replies or Replies(), begins_at)
    lead(run)
    if run.error is not None:
        raise run.error
    made: Sequence[Tensor] = run.result
    return made


@pytest.mark.parametrize("index", range(NUM_STEPS - 1))
def test_it_ends_as_the_whole_run_and_passes_are_not_done_again(pipe: Pipe, index: int) -> None:
    expected, replies = result(pipe, RunProgress()), Replies()
    run = begin(pipe, replies, RunProgress())
    kept = lead(run, index)
    run.close()
    assert kept.steps == (index + 1, index + 1)
    assert [len(tensors) for tensors in kept.kept] == [2, 2]
    pipe.transformer.num_passes = 0
    again = result(pipe, kept, replies)
    assert all(map(torch.equal, again, expected))
    assert pipe.transformer.num_passes == 2 * (NUM_STEPS - index - 1)


def test_where_the_form_of_replies_is_unknown_one_pass_of_each_shows_it(pipe: Pipe) -> None:
    run = begin(pipe, Replies(), RunProgress())
    kept, expected = lead(run, 2), result(pipe, RunProgress())
    run.close()
    pipe.transformer.num_passes = 0
    assert all(map(torch.equal, result(pipe, kept), expected))
    assert pipe.transformer.num_passes == 2 + 2


def test_a_run_on_its_way_and_one_without_a_step_keep_what_they_began_with(pipe: Pipe) -> None:
    run = begin(pipe, Replies(), RunProgress())
    kept = lead(run, 1)
    run.close()
    for progress in (kept, RunProgress()):
        waiting = begin(pipe, Replies(), progress)
        assert waiting.replay is not None
        assert waiting.replay.progress() == progress
        waiting.close()


def unusable(kept: RunProgress) -> dict[str, RunProgress]:
    (latents, before), sound = kept.kept
    return {
        "another shape": replace(kept, kept=((latents[:, 1:], before), sound)),
        "another dtype": replace(kept, kept=((latents.double(), before), sound)),
        "too few": replace(kept, kept=((latents,), sound)),
        "too many": replace(kept, kept=((latents, before, before), sound)),
        "more steps than there are": replace(kept, steps=(NUM_STEPS + 1, NUM_STEPS + 1)),
        "no steps": replace(kept, steps=(0, -1)),
        "one scheduler": replace(kept, steps=kept.steps[:1], kept=kept.kept[:1]),
        "three schedulers": replace(kept, steps=(*kept.steps, 1), kept=(*kept.kept, sound)),
    }


def test_what_does_not_fit_is_refused(pipe: Pipe) -> None:
    run = begin(pipe, Replies(), RunProgress())
    kept = lead(run, 1)
    run.close()
    for progress in unusable(kept).values():
        with pytest.raises(CheckpointUnusable):
            result(pipe, progress)
