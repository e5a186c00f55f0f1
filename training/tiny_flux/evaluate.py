"""Does the model draw what it is asked for? Held-out scenes, measured by a program.

    python training/tiny_flux/evaluate.py out/tiny-flux
    python training/tiny_flux/evaluate.py out/tiny-flux --quick --count 160   # at 4 steps alone
    python training/tiny_flux/evaluate.py out/tiny-flux --write training/tiny_flux/results

Beside the model's figures stand the checker's ceilings: the same scenes drawn truly, and those through
the VAE. `--write` keeps the tables and a contact sheet.
"""

import argparse
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKL
from PIL import Image

from checker import CONTRAST, MIN_AREA, SIDE_FROM, Assessment, Pixels, judge
from diffuserve import Engine, GenerationParams
from diffuserve.media.contact_sheet import contact_sheet
from diffuserve.models.folders.pretrained import load_module
from draw import draw
from latents import OTHER_SIZES, SIDE
from layout import NUM_TRAITS, place
from scenes import SHAPE_WORDS, Scene, caption, draw_scene, made_up_word

AXES = ("everything", "background", "count", "color", "shape", "size", "place")
TARGETS = {
    1: {"background": 99, "count": 95, "color": 97, "shape": 90, "size": 95, "place": 97},
    2: {"color": 90, "place": 90, "shape": 55},
}
MIN_DIFFERENCE = 8.0  # of 255, between two seeds of a prompt
MIN_DECIBELS = 34.0
_BATCH = 16

Row = dict[str, float]


@dataclass(frozen=True)
class Way:
    """Options of an evaluation. `is_strange` adds made-up words to each prompt."""

    num_steps: int = 4
    width: int = SIDE
    height: int = SIDE
    is_strange: bool = False

    def __str__(self) -> str:
        size = "" if self.width == self.height == SIDE else f", {self.width}×{self.height}"
        return f"{self.num_steps} steps{size}{', made-up words' if self.is_strange else ''}"


PLAIN = Way()
WAYS = (
    *(Way(num_steps) for num_steps in (1, 2, 4, 8, 20)),
    Way(is_strange=True),
    *(Way(width=width, height=height) for width, height in OTHER_SIZES),
)


def main() -> None:
    arguments = parse_arguments()
    with Engine.load(str(arguments.folder), device="cpu") as engine:
        scenes = held_out(arguments.count)
        figures = measure(arguments.folder, engine, scenes, (PLAIN,) if arguments.quick else WAYS)
        text = report(figures)
        print(text)
        if arguments.write:
            arguments.write.mkdir(parents=True, exist_ok=True)
            (arguments.write / "evaluation.json").write_text(json.dumps(figures, indent=2) + "\n")
            (arguments.write / "evaluation.md").write_text(text)
            sheet(engine, scenes).save(arguments.write / "contact-sheet.webp", quality=85, method=6)


def held_out(count: int) -> list[Scene]:
    """Return equal numbers of scenes with one object and with two."""
    chance = random.Random("held out")
    found: dict[Scene, None] = {}
    while len(found) < count:
        found[draw_scene(chance, num_things=1 + len(found) % 2, held_out=True)] = None
    return list(found)


def measure(folder: Path, engine: Engine, scenes: Sequence[Scene], ways: Sequence[Way]) -> dict[str, object]:
    truth = [true_image(scene, index) for index, scene in enumerate(scenes)]
    rebuilt = through_vae(folder, truth)
    rows = {
        "true drawings": rates(truth, scenes),
        "through the VAE": rates(rebuilt, scenes),
    }
    for way in ways:
        print(f"drawing {len(scenes)} images: {way}", flush=True)
        rows[str(way)] = rates(drawn(engine, scenes, way, seed=1), scenes)
    return {
        "num_prompts": len(scenes),
        "rows": rows,
        "difference": difference(engine, scenes[:60]),
        "decibels": decibels(truth, rebuilt),
        "checker": {"contrast": CONTRAST, "least_area": MIN_AREA, "side_from": SIDE_FROM},
    }


def rates(images: Sequence[Pixels], scenes: Sequence[Scene]) -> dict[str, Row]:
    """Percent right on each axis, of scenes with one object and with two."""
    verdicts = [judge(image, scene) for image, scene in zip(images, scenes, strict=True)]
    by_number: dict[int, list[Assessment]] = {1: [], 2: []}
    for verdict, scene in zip(verdicts, scenes, strict=True):
        by_number[len(scene.things)].append(verdict)
    return {
        str(number): {axis: _percent(found, axis) for axis in AXES} for number, found in by_number.items()
    }


def _percent(verdicts: Sequence[Assessment], axis: str) -> float:
    right = sum(bool(getattr(verdict, axis)) for verdict in verdicts)
    return round(100 * right / len(verdicts), 1)


def drawn(engine: Engine, scenes: Sequence[Scene], way: Way, seed: int) -> list[Pixels]:
    """A seed of its own for each scene."""
    images: list[Pixels] = []
    for start in range(0, len(scenes), _BATCH):
        requests = [
            GenerationParams(
                prompt=prompt_for(scene, random.Random(f"{scene} {seed}"), way.is_strange),
                seed=10_000 * seed + index,
                num_inference_steps=way.num_steps,
                width=way.width,
                height=way.height,
            )
            for index, scene in enumerate(scenes[start : start + _BATCH], start)
        ]
        images += [np.asarray(result.images[0]) for result in engine.generate(requests)]
    return images


def prompt_for(scene: Scene, chance: random.Random, is_strange: bool) -> str:
    """A caption; if `is_strange`, with a made-up word before each color of an object and one at the end."""
    words = caption(scene, chance).split()
    if is_strange:
        shapes = [index for index, word in enumerate(words) if word in SHAPE_WORDS]
        for index in reversed(shapes):
            words.insert(index - 1, made_up_word(chance))
        words.append(made_up_word(chance))
    return " ".join(words)


def true_image(scene: Scene, seed: int) -> Pixels:
    traits = torch.randn(NUM_TRAITS, generator=torch.Generator().manual_seed(seed))
    return _pixels(draw(place(scene, traits), SIDE, SIDE))


@torch.no_grad()
def through_vae(folder: Path, images: Sequence[Pixels]) -> list[Pixels]:
    """Encoded and decoded again, in float32."""
    vae = load_module(AutoencoderKL, folder / "vae", torch_dtype=torch.float32)
    rebuilt = []
    for image in images:
        values = torch.from_numpy(image.copy()).permute(2, 0, 1)[None].float() / 127.5 - 1
        latents = vae.encode(values).latent_dist.mean
        rebuilt.append(_pixels(vae.decode(latents).sample[0]))
    return rebuilt


def difference(engine: Engine, scenes: Sequence[Scene]) -> float:
    """Mean difference of 255 between two seeds of the same prompt; other seeds for each."""
    pairs = [drawn(engine, [scene, scene], PLAIN, seed) for seed, scene in enumerate(scenes, 2)]
    return difference_of([first for first, _ in pairs], [second for _, second in pairs])


def difference_of(some: Sequence[Pixels], others: Sequence[Pixels]) -> float:
    """Mean difference of 255 between images in pairs."""
    differences = [np.abs(a.astype(float) - b).mean() for a, b in zip(some, others, strict=True)]
    return round(float(np.mean(differences)), 2)


def decibels(truth: Sequence[Pixels], rebuilt: Sequence[Pixels]) -> float:
    """Mean peak signal-to-noise ratio of the VAE's own reconstruction."""
    errors = [np.square(a.astype(float) - b).mean() for a, b in zip(truth, rebuilt, strict=True)]
    return round(float(np.mean([10 * np.log10(255**2 / error) for error in errors])), 2)


def _pixels(image: torch.Tensor) -> Pixels:
    return ((image.clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8).permute(1, 2, 0).numpy()


def report(figures: dict[str, object]) -> str:
    """Tables in Markdown, targets beside what they are for."""
    rows = figures["rows"]
    assert isinstance(rows, dict)
    parts = [f"# The bundled model on {figures['num_prompts']} held-out prompts\n"]
    for number, name in ((1, "One object"), (2, "Two objects, both right")):
        targets = [f"≥ {TARGETS[number][axis]}" if axis in TARGETS[number] else "" for axis in AXES]
        lines = [["percent right", *AXES], ["---"] * (len(AXES) + 1), ["target at 4 steps", *targets]]
        for label, values in rows.items():
            lines.append([label, *(f"{values[str(number)][axis]:.1f}" for axis in AXES)])
        parts.append(f"## {name}\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n")
    parts.append(
        f"Two seeds of a prompt differ by {figures['difference']} of 255 in the mean "
        f"(target ≥ {MIN_DIFFERENCE:g}). "
        f"The VAE's own reconstruction has {figures['decibels']} dB (target ≥ {MIN_DECIBELS:g}).\n\n"
        f"`place` is the relation, of two objects. The checker: {figures['checker']}.\n"
    )
    return "\n".join(parts)


def sheet(engine: Engine, scenes: Sequence[Scene]) -> Image.Image:
    """Return a contact sheet of the images for the first prompts."""
    chosen = scenes[:24]
    images = [Image.fromarray(image) for image in drawn(engine, chosen, PLAIN, seed=1)]
    captions = [caption(scene) for scene in chosen]
    return contact_sheet(list(zip(images, captions, strict=True)), columns=6)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=600, help="prompts, half of them with two objects")
    parser.add_argument("--quick", action="store_true", help="at 4 steps and the native size alone")
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="keep table and contact sheet there")
    return parser.parse_args()


if __name__ == "__main__":
    main()
