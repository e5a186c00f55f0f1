"""Does tiny-video draw the clips that it is asked for? Measured by a program.

    python training/tiny_video/evaluate_video.py out/tiny-video
    python training/tiny_video/evaluate_video.py tiny-video --write training/tiny_video/results

Scenes were never trained on, and every third one has a neighbor. Beside the model's figures stand the
checker's ceilings: the same scenes drawn truly, and those through the VAE. Clips that begin with an image get
the first frame of a true one. `--write` keeps the tables, and a contact strip with its captions and as a GIF.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKLWan
from PIL import Image

sys.path.append(str(Path(__file__).resolve().parents[1] / "tiny_flux"))

from checker import Pixels
from diffuserve import Engine, GenerationParams
from diffuserve.media.input_image import input_image
from diffuserve.models.bundled import bundled_models
from evaluation import ceilings, held_out, judge_all, table, to_pixels, true_clips
from motions import ClipScene
from showing import animation, shown, strip
from words import clip_caption

OTHER_STEPS = (1, 2, 8)
_BATCH = 16
_OTHER_SCENES = 120  # that other numbers of steps are measured on


def main() -> None:
    arguments = parse_arguments()
    folder = bundled_models().get(arguments.model, Path(arguments.model))
    scenes = held_out(arguments.count)
    truth = true_clips(scenes)
    with Engine.load(str(folder), device="cpu") as engine:
        steps = engine.spec.num_inference_steps
        clips = drawn(engine, scenes, steps)
        rows = ceilings(_vae_of(folder), truth, scenes)
        rows[f"{steps} steps"] = judge_all(clips, scenes)
        parts = [f"# tiny-video on {len(scenes)} held-out scenes", table(rows, scenes)]
        parts.append(other_steps(engine, scenes[:_OTHER_SCENES]))
        parts.append(continued(engine, scenes[: arguments.images], truth[: arguments.images]))
        parts.append(difference(engine, scenes[:60], clips[:60]))
    text = "\n\n".join(parts) + "\n"
    print(text)
    if arguments.write:
        arguments.write.mkdir(parents=True, exist_ok=True)
        (arguments.write / "evaluation.md").write_text(text)
        write_examples(arguments.write, scenes, clips, engine.spec.fps)


def write_examples(folder: Path, scenes: Sequence[ClipScene], clips: Sequence[Pixels], fps: int) -> None:
    """Write some clips as a strip of frames and as an animation, and their captions."""
    indexes = shown(scenes)
    captions = [clip_caption(scenes[index]) for index in indexes]
    chosen = [clips[index] for index in indexes]
    (folder / "captions.json").write_text(json.dumps(captions, indent=2) + "\n")
    strip(chosen).save(folder / "contact-strip.webp", quality=95)
    (folder / "clips.webp").write_bytes(animation(chosen, fps))


def drawn(
    engine: Engine,
    scenes: Sequence[ClipScene],
    num_steps: int,
    images: Sequence[Image.Image] | None = None,
    first_seed: int = 1,
) -> list[Pixels]:
    """Return a clip of each scene by its plain caption, with a seed of its own; `images` begin them."""
    requests = [
        GenerationParams(
            prompt=clip_caption(scene),
            num_inference_steps=num_steps,
            image=None if images is None else input_image(images[index]),
            seed=10_000 * first_seed + index,
        )
        for index, scene in enumerate(scenes)
    ]
    clips: list[Pixels] = []
    for start in range(0, len(requests), _BATCH):
        for result in engine.generate(requests[start : start + _BATCH]):
            clips.append(np.stack([np.asarray(frame) for frame in result.frames[0]]))
        print(f"{len(clips)}/{len(scenes)} clips of {num_steps} steps", flush=True)
    return clips


def other_steps(engine: Engine, scenes: Sequence[ClipScene]) -> str:
    """Return the table of other numbers of steps than the default."""
    rows = {f"{steps} steps": judge_all(drawn(engine, scenes, steps), scenes) for steps in OTHER_STEPS}
    return f"## Other numbers of steps, {len(scenes)} scenes\n\n{table(rows, scenes)}"


def continued(engine: Engine, scenes: Sequence[ClipScene], truth: torch.Tensor) -> str:
    """Return how clips go on from the first frame of a true one: how well they keep it, and what they do."""
    firsts = [Image.fromarray(to_pixels(clip)[0]) for clip in truth]
    clips = drawn(engine, scenes, engine.spec.num_inference_steps, firsts)
    kept = [_decibels(clip[0], np.asarray(first)) for clip, first in zip(clips, firsts, strict=True)]
    rows = {"from a first frame": judge_all(clips, scenes)}
    return (
        f"## From a first frame, {len(scenes)} scenes\n\n{table(rows, scenes)}\n\nThe first frame is kept at "
        f"{np.mean(kept):.1f} dB in the mean, {np.percentile(kept, 10):.1f} at the tenth percentile."
    )


def difference(engine: Engine, scenes: Sequence[ClipScene], clips: Sequence[Pixels]) -> str:
    """Return how much clips of another seed differ."""
    others = drawn(engine, scenes, engine.spec.num_inference_steps, first_seed=2)
    gaps = [np.abs(clip.astype(float) - other).mean() for clip, other in zip(clips, others, strict=True)]
    return (
        f"Two seeds of a prompt differ by {np.mean(gaps):.1f} of 255 in the mean, {min(gaps):.1f} at least."
    )


def _vae_of(folder: Path) -> AutoencoderKLWan:
    """Return the model's VAE in float32, which is evaluated in bf16 as in training."""
    vae: AutoencoderKLWan = AutoencoderKLWan.from_pretrained(
        folder, subfolder="vae", dtype=torch.float32, local_files_only=True, trust_remote_code=False
    )
    return vae


def _decibels(found: Pixels, expected: Pixels) -> float:
    return float(10 * np.log10(255**2 / np.square(found.astype(float) - expected).mean()))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="a folder, or the bundled model's name")
    parser.add_argument("--count", type=int, default=400, help="scenes, default 400")
    parser.add_argument("--images", type=int, default=150, help="scenes begun by an image, default 150")
    parser.add_argument("--write", type=Path, help="folder for tables, strip and captions")
    return parser.parse_args()


if __name__ == "__main__":
    main()
