"""Does tiny-sd draw what it is asked for, and leave out what it is told to? Measured by a program.

    python training/tiny_sd/evaluate_sd.py out/tiny-sd
    python training/tiny_sd/evaluate_sd.py out/tiny-sd --write training/tiny_sd/results

Prompts are for scenes that were never trained on. Beside the model's figures stand the checker's ceilings:
the same scenes drawn truly, and those through the VAE. `--write` keeps the tables and a contact sheet.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

sys.path.append(str(Path(__file__).resolve().parents[1] / "tiny_flux"))

from checker import Pixels, Seen, border_color, find_things
from diffuserve import Engine, GenerationParams
from diffuserve.media.contact_sheet import contact_sheet
from evaluate import AXES, difference_of, held_out, rates, through_vae, true_image
from evaluate_edits import Way as EditWay
from evaluate_edits import edited, figures_of, recolor
from noise_levels import NUM_STEPS
from scenes import COLORS, SHAPES, Scene, caption
from sd_folder import GUIDANCE
from wishes import USUAL

SIDE = 128
_BATCH = 16
_OTHER_PROMPTS = 100  # that other ways than the default one are measured on


@dataclass(frozen=True)
class Way:
    """Options of drawing."""

    num_steps: int = NUM_STEPS
    guidance: float = GUIDANCE
    side: int = SIDE

    def __str__(self) -> str:
        size = "" if self.side == SIDE else f", {self.side}×{self.side}"
        return f"{self.num_steps} steps, guidance {self.guidance:g}{size}"


PLAIN = Way()
WAYS = (
    PLAIN,
    *(Way(guidance=guidance) for guidance in (1.0, 2.0, 5.0)),
    *(Way(num_steps=num_steps) for num_steps in (4, 20)),
    *(Way(side=side) for side in (96, 160)),
)


@dataclass(frozen=True)
class Refusal:
    """A prompt that leaves something open, and a negative prompt that says no to what it mostly means."""

    prompt: str
    negative: str
    color: str | None = None
    shape: str | None = None

    def is_shown(self, seen: Seen) -> bool:
        """Return whether the object is what the negative prompt names."""
        return self.color in (None, seen.color) and self.shape in (None, seen.shape)


COLOR_OF_A_SHAPE = tuple(Refusal(f"a {shape}", color, color=color) for shape, color in USUAL.items())
SHAPE_OF_A_COLOR = tuple(Refusal(f"something {color}", shape, shape=shape) for shape, color in USUAL.items())
EDITS = (EditWay(1.0, 8), EditWay(0.75, 8), EditWay(0.75, 8, is_masked=False))
EXAMPLES = (COLOR_OF_A_SHAPE[4], COLOR_OF_A_SHAPE[3], SHAPE_OF_A_COLOR[4], SHAPE_OF_A_COLOR[0])


def main() -> None:
    arguments = parse_arguments()
    with Engine.load(str(arguments.folder), device="cpu") as engine:
        scenes = held_out(arguments.count)
        figures = measure(arguments.folder, engine, scenes, (PLAIN,) if arguments.quick else WAYS)
        figures["refusals"] = {
            "the usual color of a shape": refusal_rates(engine, COLOR_OF_A_SHAPE, arguments.seeds),
            "the usual shape of a color": refusal_rates(engine, SHAPE_OF_A_COLOR, arguments.seeds),
        }
        edits = [recolor(scene, seed) for seed, scene in enumerate(scenes[: 2 * arguments.edits : 2])]
        figures["edits"] = {str(way): figures_of(edited(engine, edits, way), edits) for way in EDITS}
        figures["num_edits"] = len(edits)
        text = report(figures)
        print(text)
        if arguments.write:
            arguments.write.mkdir(parents=True, exist_ok=True)
            (arguments.write / "evaluation.json").write_text(json.dumps(figures, indent=2) + "\n")
            (arguments.write / "evaluation.md").write_text(text)
            sheet(engine, scenes).save(arguments.write / "contact-sheet.webp", quality=85, method=6)


def measure(folder: Path, engine: Engine, scenes: Sequence[Scene], ways: Sequence[Way]) -> dict[str, object]:
    """Return percentages right, by the way of drawing."""
    truth = [true_image(scene, index) for index, scene in enumerate(scenes)]
    rows = {
        "true drawings": rates(truth, scenes),
        "through the VAE": rates(through_vae(folder, truth), scenes),
    }
    prompts = [caption(scene) for scene in scenes]
    for way in ways:
        count = len(scenes) if way == PLAIN else min(len(scenes), _OTHER_PROMPTS)
        print(f"drawing {count} images: {way}", flush=True)
        rows[f"{way}, {count} prompts"] = rates(drawn(engine, prompts[:count], way), scenes[:count])
    pairs = [drawn(engine, prompts[:60], PLAIN, first_seed=seed) for seed in (1, 2)]
    return {"num_prompts": len(scenes), "rows": rows, "difference": difference_of(*pairs)}


def drawn(
    engine: Engine,
    prompts: Sequence[str],
    way: Way = PLAIN,
    negatives: Sequence[str | None] | None = None,
    first_seed: int = 1,
) -> list[Pixels]:
    """Return an image for each prompt, with a seed of its own."""
    requests = [
        GenerationParams(
            prompt=prompt,
            negative_prompt=negative if way.guidance > 1 else None,
            seed=10_000 * first_seed + index,
            num_inference_steps=way.num_steps,
            guidance_scale=way.guidance,
            width=way.side,
            height=way.side,
        )
        for index, (prompt, negative) in enumerate(
            zip(prompts, negatives or [None] * len(prompts), strict=True)
        )
    ]
    images: list[Pixels] = []
    for start in range(0, len(requests), _BATCH):
        images += [np.asarray(done.images[0]) for done in engine.generate(requests[start : start + _BATCH])]
    return images


def refusal_rates(engine: Engine, refusals: Sequence[Refusal], num_seeds: int) -> dict[str, dict[str, float]]:
    """Return how often what is asked for, and what is refused, are seen without and with the no."""
    cases = [refusal for refusal in refusals for _ in range(num_seeds)]
    prompts = [case.prompt for case in cases]
    images = {
        "without": drawn(engine, prompts),
        "with": drawn(engine, prompts, negatives=[case.negative for case in cases]),
    }
    return {name: refusal_row(found, cases) for name, found in images.items()}


def refusal_row(images: Sequence[Pixels], cases: Sequence[Refusal]) -> dict[str, float]:
    counts = {"one object": 0, "asked for": 0, "refused": 0}
    for image, case in zip(images, cases, strict=True):
        seen = find_things(image, border_color(image))
        counts["one object"] += len(seen) == 1
        counts["refused"] += any(case.is_shown(thing) for thing in seen)
        counts["asked for"] += len(seen) == 1 and _is_asked(seen[0], case)
    return {name: round(100 * count / len(cases), 1) for name, count in counts.items()}


def _is_asked(seen: Seen, case: Refusal) -> bool:
    *_, word = case.prompt.split()
    return word in (seen.color if word in COLORS else seen.shape,)


def report(figures: dict[str, object]) -> str:
    """Return tables in Markdown."""
    rows, refusals = figures["rows"], figures["refusals"]
    assert isinstance(rows, dict)
    assert isinstance(refusals, dict)
    parts = [f"# tiny-sd on {figures['num_prompts']} held-out prompts\n"]
    for number, name in ((1, "One object"), (2, "Two objects, both right")):
        lines = [[label, *(f"{row[str(number)][axis]:.1f}" for axis in AXES)] for label, row in rows.items()]
        parts.append(f"## {name}\n\n{_table(['percent right', *AXES], lines)}\n")
    lines = [
        [name, f"{label} the negative prompt", *(f"{value:.1f}" for value in row.values())]
        for name, both in refusals.items()
        for label, row in both.items()
    ]
    head = ["says no to", "percent of images", "one object", "asked for and there", "refused and yet there"]
    parts.append(f"## Negative prompts\n\n{_table(head, lines)}\n")
    edits = figures["edits"]
    assert isinstance(edits, dict)
    lines = [[way, *(f"{value:.1f}" for value in row.values())] for way, row in edits.items()]
    head = [f"{figures['num_edits']} single objects recolored", *next(iter(edits.values()))]
    parts.append(f"## Edits\n\n{_table(head, lines)}\n\n`kept` is the mean PSNR outside the mask, in dB.\n")
    parts.append(f"Two seeds of a prompt differ by {figures['difference']} of 255 in the mean.\n")
    return "\n".join(parts)


def _table(head: list[str], lines: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, ["---"] * len(head), *lines])


def sheet(engine: Engine, scenes: Sequence[Scene]) -> Image.Image:
    """Return a contact sheet: the first prompts, then prompts without and with a no."""
    prompts = [caption(scene) for scene in scenes[:18]]
    shown = list(zip(drawn(engine, prompts), prompts, strict=True))
    for case in EXAMPLES:
        asked = [case.prompt] * 6
        negatives = [None, None, None, *[case.negative] * 3]
        titles = [case.prompt] * 3 + [f"{case.prompt}, not {case.negative}"] * 3
        shown += zip(drawn(engine, asked, negatives=negatives, first_seed=7), titles, strict=True)
    return contact_sheet([(Image.fromarray(image), title) for image, title in shown], columns=6)


def parse_arguments() -> argparse.Namespace:
    """Return the command line's arguments."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=400, help="prompts, half of them with two objects")
    parser.add_argument("--seeds", type=int, default=20, help="images of each negative prompt")
    parser.add_argument("--edits", type=int, default=100, help="single objects that are given another color")
    parser.add_argument("--quick", action="store_true", help="at the default steps and guidance alone")
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="keep table and contact sheet there")
    return parser.parse_args()


assert set(USUAL) == set(SHAPES)

if __name__ == "__main__":
    main()
