"""Does the model change what it is asked to change, and keep the rest? Measured on held-out scenes.

    python training/tiny_flux/evaluate_edits.py out/tiny-flux
    python training/tiny_flux/evaluate_edits.py out/tiny-flux --write training/tiny_flux/results

Each scene is drawn truly; the model is to give one of its objects another color. Inpainting gets a mask of
the object with a margin, image-to-image the image alone. Any model that knows the scenes can be measured.
"""

import argparse
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from checker import Mask, Pixels, judge
from diffuserve import Engine, GenerationParams
from diffuserve.media.contact_sheet import contact_sheet
from diffuserve.media.input_image import input_image
from draw import draw, signed_distance
from evaluate import held_out
from latents import SIDE
from layout import NUM_TRAITS, Placed, place
from scenes import COLORS, Scene, caption

TARGETS = {"color": 85.0, "kept": 30.0}
MARGIN = 8
"""Pixels around the object that may change: a latent cell, without which the old color shines through."""
_BATCH = 16

Row = dict[str, float]


@dataclass(frozen=True)
class Edit:
    """An image, the scene that it is to become, and where it may change."""

    image: Pixels
    wanted: Scene
    mask: Mask


@dataclass(frozen=True)
class Way:
    """Options of an edit. Without a mask the whole image may change."""

    strength: float
    num_steps: int
    is_masked: bool = True

    def __str__(self) -> str:
        kind = "inpainting" if self.is_masked else "image-to-image"
        return f"{kind}, strength {self.strength:g}, {self.num_steps} steps"


PLAIN = Way(1.0, 4)
WAYS = (
    PLAIN,
    *(Way(1.0, num_steps) for num_steps in (1, 8, 20)),
    Way(0.75, 8),
    *(Way(strength, 8, is_masked=False) for strength in (0.5, 0.75, 0.9)),
)


def main() -> None:
    arguments = parse_arguments()
    edits = [recolor(scene, seed) for seed, scene in enumerate(held_out(arguments.count))]
    with Engine.load(str(arguments.folder), device="cpu", dtype="float32") as engine:
        rows = {}
        for way in WAYS:
            print(f"editing {len(edits)} images: {way}", flush=True)
            rows[str(way)] = figures_of(edited(engine, edits, way), edits)
        text = report(arguments.folder.name, len(edits), rows)
        print(text)
        if arguments.write:
            arguments.write.mkdir(parents=True, exist_ok=True)
            (arguments.write / "edits.json").write_text(json.dumps(rows, indent=2) + "\n")
            (arguments.write / "edits.md").write_text(text)
            sheet(engine, edits).save(arguments.write / "edits.webp", quality=95)


def recolor(scene: Scene, seed: int) -> Edit:
    """Return the task to give one object a color that is not in the image yet."""
    chance = random.Random(f"{scene} {seed}")
    traits = torch.randn(NUM_TRAITS, generator=torch.Generator().manual_seed(seed))
    layout = place(scene, traits)
    chosen = chance.randrange(len(scene.things))
    present = {scene.background or "white", *(thing.color for thing in scene.things)}
    color = chance.choice([name for name in COLORS if name not in present])
    things = list(scene.things)
    things[chosen] = replace(things[chosen], color=color)
    image = ((draw(layout, SIDE, SIDE).clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)
    return Edit(
        image=image.permute(1, 2, 0).numpy(),
        wanted=replace(scene, things=tuple(things)),
        mask=around(layout.things[chosen]),
    )


def around(thing: Placed) -> Mask:
    """Return the pixels of an object and of the margin around it."""
    axis = (torch.arange(SIDE) + 0.5) / SIDE
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    distance = signed_distance(thing.shape, (x - thing.x) / thing.radius, (y - thing.y) / thing.radius)
    mask: Mask = (distance * thing.radius * SIDE < MARGIN).numpy()
    return mask


def edited(engine: Engine, edits: Sequence[Edit], way: Way) -> list[Pixels]:
    """A seed of its own for each image."""
    requests = [
        GenerationParams(
            prompt=caption(edit.wanted),
            image=input_image(Image.fromarray(edit.image)),
            mask=input_image(Image.fromarray(edit.mask), "L") if way.is_masked else None,
            strength=way.strength,
            num_inference_steps=way.num_steps,
            seed=seed,
        )
        for seed, edit in enumerate(edits)
    ]
    batches = [requests[start : start + _BATCH] for start in range(0, len(requests), _BATCH)]
    return [np.asarray(result.images[0]) for batch in batches for result in engine.generate(batch)]


def figures_of(images: Sequence[Pixels], edits: Sequence[Edit]) -> Row:
    """Percent right, and how well the part outside the mask is kept, in decibels."""
    pairs = list(zip(images, edits, strict=True))
    verdicts = [judge(image, edit.wanted) for image, edit in pairs]
    kept = [decibels(image[~edit.mask], edit.image[~edit.mask]) for image, edit in pairs]
    axes = ("color", "shape", "everything")
    right = {axis: _percent([bool(getattr(verdict, axis)) for verdict in verdicts]) for axis in axes}
    well_kept = _percent([decibel >= TARGETS["kept"] for decibel in kept])
    return right | {"kept": round(sum(kept) / len(kept), 1), "well kept": well_kept}


def _percent(found: Sequence[bool]) -> float:
    return round(100 * sum(found) / len(found), 1)


def decibels(image: Pixels, original: Pixels) -> float:
    """Return the peak signal-to-noise ratio."""
    error = float(np.square(image.astype(float) - original).mean())
    return float(10 * np.log10(255**2 / max(error, 1e-9)))


def report(name: str, count: int, rows: dict[str, Row]) -> str:
    """Return a table in Markdown."""
    columns = list(next(iter(rows.values())))
    targets = [f"≥ {TARGETS[column]:g}" if column in TARGETS else "" for column in columns]
    lines = [["", *columns], ["---"] * (len(columns) + 1), ["target", *targets]]
    lines += [[way, *(f"{row[column]:.1f}" for column in columns)] for way, row in rows.items()]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return (
        f"# {name}: one object of {count} held-out scenes recolored\n\n{table}\n\n"
        "`color`, `shape`: percent of images in which all objects have those asked for; `everything`: that, "
        "and background, number, sizes and places. `kept`: mean PSNR, in dB, of what lies outside the mask "
        f"(of the object with {MARGIN} pixels around it) beside the image that was given; `well kept`: "
        f"percent of images where it is at least {TARGETS['kept']:g}. Image-to-image has no mask; what it "
        "keeps is measured in the same part.\n"
    )


def sheet(engine: Engine, edits: Sequence[Edit]) -> Image.Image:
    """Return a contact sheet: images as they were, and below each what became of it."""
    chosen = edits[:12]
    after = edited(engine, chosen, PLAIN)
    pairs = [
        Image.fromarray(np.concatenate([edit.image, image]))
        for edit, image in zip(chosen, after, strict=True)
    ]
    captions = [caption(edit.wanted) for edit in chosen]
    return contact_sheet(list(zip(pairs, captions, strict=True)), columns=6)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=160, help="scenes, half of them with two objects")
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="keep table and contact sheet there")
    return parser.parse_args()


if __name__ == "__main__":
    main()
