"""What the adapter taught: held-out scenes with copper and moons, with it and without, by the same judge.

    python training/tiny_flux/evaluate_adapter.py out/copper-moon.safetensors
    python training/tiny_flux/evaluate_adapter.py FILE --write training/tiny_flux/results

The judge tells copper from the twelve colors that the model knows, and a moon from the eight shapes.
"""

import argparse
import json
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from adapter_lessons import BOTH, COLOR, NOTHING, SHAPE, draw_lesson
from checker import WITH_TAUGHT, Pixels, judge
from diffuserve import AdapterUse, Engine, GenerationParams
from diffuserve.media.contact_sheet import contact_sheet
from evaluate import true_image
from scenes import Scene, Thing, caption

AXES = ("everything", "background", "color", "shape")
GROUPS = {
    "a copper moon": (BOTH, 1),
    "a copper moon and another object": (BOTH, 2),
    "another shape in copper": (COLOR, 1),
    "a moon in another color": (SHAPE, 1),
    "an object that the model knows": (NOTHING, 1),
    "two objects that it knows": (NOTHING, 2),
}
TRUE, WITH, WITHOUT = "true drawings", "with", "without"
TARGET = "a copper moon with the adapter: ≥ 90 % of colors and of shapes"
_NAME, _BATCH = "copper-moon", 16
_SHOWN = (
    Scene((Thing("moon", "copper", "large"),)),
    Scene((Thing("moon", "copper", None, "top right"),), "yellow"),
    Scene((Thing("moon", "copper"), Thing("star", "orange")), "black", "next to"),
    Scene((Thing("heart", "copper", "large"),), "pink"),
    Scene((Thing("moon", "yellow", "large"),), "blue"),
    Scene((Thing("ring", "red", "large"),), "copper"),
)

Row = dict[str, float]


def main() -> None:
    arguments = parse_arguments()
    with Engine.load("tiny-flux", device="cpu", adapters={_NAME: arguments.file}) as engine:
        figures = measure(engine, arguments.count)
        text = report(figures)
        print(text)
        if arguments.write:
            (arguments.write / "adapter.json").write_text(json.dumps(figures, separators=(",", ":")) + "\n")
            (arguments.write / "adapter.md").write_text(text)
            sheet(engine).save(arguments.write / "adapter.webp", quality=60, method=6)


def measure(engine: Engine, count: int) -> dict[str, object]:
    rows: dict[str, dict[str, Row]] = {}
    for name, (news, num_things) in GROUPS.items():
        chance = random.Random(f"held out lesson {name}")
        scenes = [draw_lesson(chance, news, num_things, held_out=True) for _ in range(count)]
        images = {
            TRUE: [true_image(scene, seed) for seed, scene in enumerate(scenes)],
            WITH: drawn(engine, scenes, weight=1.0),
            WITHOUT: drawn(engine, scenes),
        }
        rows[name] = {way: rates(found, scenes) for way, found in images.items()}
    return {"num_prompts": count, "rows": rows, "unchanged": unchanged(engine)}


def drawn(engine: Engine, scenes: Sequence[Scene], weight: float | None = None) -> list[Pixels]:
    """Draw each scene, with a seed of its own, with the adapter or without."""
    images: list[Pixels] = []
    for start in range(0, len(scenes), _BATCH):
        requests = [
            asked(scene, number, weight) for number, scene in enumerate(scenes[start : start + _BATCH], start)
        ]
        images += [np.asarray(result.images[0]) for result in engine.generate(requests)]
    return images


def asked(scene: Scene, number: int, weight: float | None) -> GenerationParams:
    return GenerationParams(
        prompt=caption(scene, random.Random(f"{scene} {number}")),
        seed=number,
        num_inference_steps=4,
        adapters=None if weight is None else (AdapterUse(_NAME, weight),),
    )


def rates(images: Sequence[Pixels], scenes: Sequence[Scene]) -> Row:
    """Percent right on each axis."""
    verdicts = [judge(image, scene, WITH_TAUGHT) for image, scene in zip(images, scenes, strict=True)]
    return {
        axis: round(100 * sum(bool(getattr(verdict, axis)) for verdict in verdicts) / len(verdicts), 1)
        for axis in AXES
    }


def unchanged(engine: Engine) -> bool:
    """Return whether images without the adapter are the same to the bit beside some with it, and none."""
    chance = random.Random("neighbors")
    scenes = [draw_lesson(chance, NOTHING, 1) for _ in range(_BATCH)]
    plain = [asked(scene, number, None) for number, scene in enumerate(scenes)]
    mixed = [asked(scene, number, 1.0 if number % 2 else None) for number, scene in enumerate(scenes)]
    pairs = zip(engine.generate(plain)[::2], engine.generate(mixed)[::2], strict=True)
    return all(np.array_equal(np.asarray(a.images[0]), np.asarray(b.images[0])) for a, b in pairs)


def report(figures: dict[str, object]) -> str:
    """A table in Markdown."""
    rows = figures["rows"]
    assert isinstance(rows, dict)
    lines = [["percent right", "", *AXES], ["---"] * (len(AXES) + 2)]
    for name, ways in rows.items():
        for way, values in ways.items():
            lines.append([name, way, *(f"{values[axis]:.0f}" for axis in AXES)])
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    same = "unchanged to the bit" if figures["unchanged"] else "CHANGED"
    return (
        "# tiny-flux with its adapter `copper-moon`\n\n"
        f"{figures['num_prompts']} held-out scenes of each kind, 4 steps, 128×128. The target: {TARGET}.\n\n"
        f"{table}\n\n"
        f"Images of requests without the adapter are {same} where half of their batch has it.\n"
    )


def sheet(engine: Engine) -> Image.Image:
    """Return a contact sheet: prompts with the adapter, and below them without."""
    cells = []
    for label, weight in ((WITH, 1.0), (WITHOUT, None)):
        requests = [
            GenerationParams(prompt=caption(scene), seed=3, adapters=(AdapterUse(_NAME),) if weight else None)
            for scene in _SHOWN
        ]
        results = engine.generate(requests)
        cells += [(result.images[0], f"{label}: {result.params.prompt}") for result in results]
    return contact_sheet(cells, columns=len(_SHOWN))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("--count", type=int, default=100, help="prompts of each kind")
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="keep table and contact sheet there")
    return parser.parse_args()


if __name__ == "__main__":
    main()
