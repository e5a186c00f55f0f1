"""The adapter of a third look: a low-rank change of the denoiser, learned as the denoiser itself learned."""

import argparse
import random
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import torch
from diffusers import FluxTransformer2DModel
from PIL import Image
from torch import Tensor

from diffuserve import AdapterUse, Engine, GenerationParams
from diffuserve.media.contact_sheet import contact_sheet
from diffuserve.models.bundled import bundled_models
from emoji_autoencoder import NAME as VAE
from emoji_checkpoint import adopt
from emoji_denoiser import count_of, predictor, step_of
from emoji_folder import NAME as MODEL
from emoji_packages import FOLDER
from emoji_showing import held_out
from emoji_stages import learned, prepare
from emoji_text import NAME as TEXT
from emoji_walks import EmojiWalks, Studio
from look import NAME, gilded
from look_judging import judged, train_judge
from loop import Course, Stopped, warm_then_linear
from low_rank import LowRank
from pictures import Range
from train_adapter import LAYERS

RANK = 2
_RATE, _PAIR_SHARE = 4e-3, 0.2
_SIZES = ((96, 96), (128, 128))
_JUDGED_SIZE = (128, 128)
_SHOWN = (
    "a large red apple, 3d, on a blue background",
    "a large tiger face, flat, on a green background",
    "a large panda, 3d, on a purple background",
)


def main() -> None:
    """Train the adapter, unless that is done, and write it; then judge it if the arguments say so."""
    arguments = parse_arguments()
    warnings.filterwarnings("ignore", message="There are modules in")
    warnings.filterwarnings("ignore", message="Mismatch dtype between input and weight")
    torch.set_num_threads(arguments.threads)
    arguments.state.mkdir(parents=True, exist_ok=True)
    adopt(bundled_models()[MODEL], arguments.state, dict.fromkeys((VAE, TEXT), 0))
    lesson = prepare(arguments)
    vae, encoders, denoiser = learned(arguments.state, lesson, bundled_models()[MODEL])
    studio = Studio(vae, encoders, lesson)
    studio.lesson = replace(lesson, sprites=gilded(lesson.sprites))
    try:
        train(arguments, studio, denoiser).save(arguments.file)
        print(f"wrote {arguments.file}, {arguments.file.stat().st_size} bytes")
        if arguments.judge:
            print_verdicts(arguments, studio, denoiser)
        if arguments.sheet:
            sheet(arguments.file).save(arguments.sheet, quality=80, method=6)
    except Stopped:
        sys.exit("stopped; everything is saved, and the same command goes on")


def train(arguments: argparse.Namespace, studio: Studio, denoiser: FluxTransformer2DModel) -> LowRank:
    """Put the changes into the denoiser, and return them as they are after all steps."""
    torch.manual_seed(4)
    changes = LowRank(denoiser, LAYERS, arguments.rank)
    optimizer = torch.optim.AdamW(changes.parameters(), lr=_RATE, betas=(0.9, 0.95), weight_decay=0)
    course = Course(
        NAME, {"adapter": changes}, [optimizer], arguments.steps, warm_then_linear, arguments.state, 0.99
    )
    drawn = Range(len(studio.lesson.things), _PAIR_SHARE)
    walks = {size: EmojiWalks(studio, size, count_of(size)) for size in _SIZES}
    predict = predictor(denoiser)

    def loss(_step: int, chance: random.Random) -> tuple[Tensor, dict[str, float]]:
        walk = walks[chance.choice(_SIZES)]
        walk.begin(drawn, chance)
        return step_of(walk, predict)

    course.run(loss)
    course.averaged()
    return changes


def print_verdicts(arguments: argparse.Namespace, studio: Studio, changed: FluxTransformer2DModel) -> None:
    """Print how often the judge sees gold and the right thing, with the adapter and without."""
    lesson = prepare(arguments)
    _, _, plain = learned(arguments.state, lesson, None)
    judge = train_judge(arguments.state / "judge", arguments.judge_steps, lesson.sprites)
    pictures = held_out(Range(len(lesson.things), pair_share=0), arguments.judge)
    drawn_by = {"with": predictor(changed), "without": predictor(plain)}
    for name, parts in judged(studio, drawn_by, judge, pictures, _JUDGED_SIZE).items():
        print(name, ", ".join(f"{part} {100 * share:.1f} %" for part, share in parts.items()))


def sheet(file: Path) -> Image.Image:
    """Return prompts as the engine draws them without the adapter, and below with it, from the same seeds."""
    requests = [
        GenerationParams(prompt=prompt, seed=1, adapters=adapters)
        for adapters in (None, (AdapterUse(NAME),))
        for prompt in _SHOWN
    ]
    with Engine.load(MODEL, device="cpu", adapters={NAME: file}) as engine:
        images = [result.images[0] for result in engine.generate(requests)]
    named = [
        (image, ("with: " if request.adapters else "without: ") + str(request.prompt))
        for image, request in zip(images, requests, strict=True)
    ]
    return contact_sheet(named, columns=len(_SHOWN))


def parse_arguments() -> argparse.Namespace:
    """Return the command line's arguments."""
    parser = argparse.ArgumentParser(description="Train an adapter that gilds what tiny-emoji draws.")
    parser.add_argument("--state", type=Path, default=Path("out/tiny_emoji_look"), help="where it is saved")
    parser.add_argument("--packages", type=Path, default=FOLDER, help="what `make emoji-packages` fetched")
    parser.add_argument("--file", type=Path, default=Path("out") / f"{NAME}.safetensors")
    parser.add_argument("--judge", type=int, metavar="PICTURES", help="measure so many held-out drawings")
    parser.add_argument("--sheet", type=Path, help="show prompts with the adapter and without in this file")
    parser.add_argument("--judge-steps", type=int, default=1_500)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--rank", type=int, default=RANK)
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()
