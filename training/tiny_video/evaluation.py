"""Evaluation: how often clips of held-out scenes are what was asked for."""

import random
from collections import defaultdict
from collections.abc import Sequence

import torch
from diffusers import AutoencoderKLWan
from torch import Tensor

from checker import Pixels
from choreography import NUM_TRAITS
from clip_checker import ClipVerdict, judge_clip
from clip_latents import true_clip
from motions import ClipScene, Motion, draw_clip_scene
from video_autoencoder import decibels, decode

AXES = ("everything", "background", "count", "color", "shape", "motion", "speed", "place", "smooth")
_BATCH = 8


def held_out(count: int) -> list[ClipScene]:
    """Return scenes of combinations that were never trained on, every third one with a neighbor."""
    chance = random.Random("held out")
    return [draw_clip_scene(chance, index % 3 == 2, held_out=True) for index in range(count)]


def true_clips(scenes: Sequence[ClipScene]) -> Tensor:
    """Return the scenes drawn truly, `(len(scenes), 3, frames, side, side)` in -1…1."""
    traits = torch.randn(len(scenes), NUM_TRAITS, generator=torch.Generator().manual_seed(0))
    return torch.stack([true_clip(scene, of_scene) for scene, of_scene in zip(scenes, traits, strict=True)])


def ceilings(
    vae: AutoencoderKLWan, truth: Tensor, scenes: Sequence[ClipScene]
) -> dict[str, list[ClipVerdict]]:
    """Return verdicts on true clips, and on the same clips encoded and decoded: what a model may reach."""
    rebuilt = through_autoencoder(vae, truth)
    ratio = decibels((rebuilt - truth).square().mean())
    return {
        "true drawings": judge_all([to_pixels(clip) for clip in truth], scenes),
        f"through the VAE, {ratio:.1f} dB": judge_all([to_pixels(clip) for clip in rebuilt], scenes),
    }


def evaluate_autoencoder(vae: AutoencoderKLWan, count: int) -> str:
    """Return a table of what a model may reach with this VAE on so many held-out scenes."""
    scenes = held_out(count)
    return table(ceilings(vae, true_clips(scenes), scenes), scenes)


@torch.no_grad()
def through_autoencoder(vae: AutoencoderKLWan, clips: Tensor) -> Tensor:
    """Return clips `(batch, 3, frames, side, side)` encoded and decoded in bf16."""
    rebuilt = []
    for batch in clips.split(_BATCH):
        with torch.autocast("cpu", torch.bfloat16):
            rebuilt.append(decode(vae, vae.encode(batch).latent_dist.mean).float().clamp(-1, 1))
    return torch.cat(rebuilt)


def to_pixels(clip: Tensor) -> Pixels:
    """Return a clip `(3, frames, side, side)` in -1…1 as `(frames, side, side, 3)` of 0…255."""
    pixels: Pixels = ((clip + 1) * 127.5).round().to(torch.uint8).permute(1, 2, 3, 0).numpy()
    return pixels


def judge_all(clips: Sequence[Pixels], scenes: Sequence[ClipScene]) -> list[ClipVerdict]:
    """Return the verdict on each clip."""
    return [judge_clip(clip, scene) for clip, scene in zip(clips, scenes, strict=True)]


def table(rows: dict[str, list[ClipVerdict]], scenes: Sequence[ClipScene]) -> str:
    """Return percentages as Markdown: what is right by row, and then every motion's `everything`."""
    by_axis = {name: [_percent(verdicts, axis) for axis in AXES] for name, verdicts in rows.items()}
    motions = [motion for motion in Motion if any(scene.motion == motion for scene in scenes)]
    by_motion = {name: _by_motion(verdicts, scenes, motions) for name, verdicts in rows.items()}
    return f"{_markdown(AXES, by_axis)}\n\n{_markdown(motions, by_motion)}"


def _by_motion(
    verdicts: Sequence[ClipVerdict], scenes: Sequence[ClipScene], motions: Sequence[Motion]
) -> list[float]:
    found: dict[Motion, list[ClipVerdict]] = defaultdict(list)
    for verdict, scene in zip(verdicts, scenes, strict=True):
        found[scene.motion].append(verdict)
    return [_percent(found[motion], "everything") for motion in motions]


def _percent(verdicts: Sequence[ClipVerdict], axis: str) -> float:
    return 100 * sum(bool(getattr(verdict, axis)) for verdict in verdicts) / len(verdicts)


def _markdown(columns: Sequence[str], rows: dict[str, list[float]]) -> str:
    lines = [f"| percent right | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    lines += [
        f"| {name} | {' | '.join(f'{value:.1f}' for value in values)} |" for name, values in rows.items()
    ]
    return "\n".join(lines)
