"""The stages of tiny-emoji's training, in order."""

import argparse
import sys
import warnings
from pathlib import Path

import torch
from diffusers import AutoencoderKL, FluxTransformer2DModel

import emoji_autoencoder
import emoji_denoiser
import emoji_text
from diffuserve.models.bundled import bundled_models
from emoji_checkpoint import TOKENIZERS, adopt, adopt_denoiser, load_averages, path_of, steps_done
from emoji_denoiser import Predict, predictor
from emoji_folder import HOME, NAME, assemble, bundle
from emoji_judging import judged
from emoji_packages import FOLDER
from emoji_showing import held_out, show
from emoji_text import Lesson
from emoji_tokenizers import load_tokenizers
from emoji_walks import Studio
from judge import train as train_judge
from loop import Stopped
from nearest import nearest
from pictures import Range
from sprites import drawn_things, load_sprites
from text_encoders import TextEncoders
from things import load_things

_NUM_SHOWN, _SHOWN_PAIRS = 24, 0.3
_NUM_COMPARED = 200


def main() -> None:
    """Run every stage that is not done yet, or do what else the arguments say."""
    arguments = parse_arguments()
    warnings.filterwarnings("ignore", message="There are modules in")
    warnings.filterwarnings("ignore", message="Mismatch dtype between input and weight")
    torch.set_num_threads(arguments.threads)
    arguments.state.mkdir(parents=True, exist_ok=True)
    folder = None if arguments.from_nothing else bundled_models()[NAME]
    if folder is not None:
        num_steps = {emoji_autoencoder.NAME: arguments.vae_steps, emoji_text.NAME: arguments.text_steps}
        for name in adopt(folder, arguments.state, num_steps):
            print(f"{name}: goes on from the weights in {folder}")
    try:
        train(arguments, folder)
    except Stopped:
        sys.exit("stopped; everything is saved, and the same command goes on")


def train(arguments: argparse.Namespace, begun: Path | None) -> None:
    """Train each part with the parts before it finished; or show, or assemble, what there is.

    A denoiser that is not there yet is that of the folder `begun`, or new.
    """
    state: Path = arguments.state
    lesson = prepare(arguments)
    if arguments.show or arguments.judge or arguments.nearest or arguments.assemble_only or arguments.bundle:
        vae, encoders, denoiser = learned(state, lesson, begun)
        studio = Studio(vae, encoders, lesson)
    else:
        refuse_other_words(state, arguments.text_steps)
        vae = emoji_autoencoder.train(state, arguments.vae_steps, lesson.sprites, lesson.device)
        studio = Studio(vae, emoji_text.train(state, arguments.text_steps, lesson), lesson)
        if begun is not None:
            adopt_denoiser(begun, state, studio.encoders, lesson)
        denoiser = emoji_denoiser.train(state, arguments.steps, studio)
    if arguments.show:
        pictures = held_out(Range(arguments.num_things, _SHOWN_PAIRS), _NUM_SHOWN)
        show(arguments.show, studio, predictor(denoiser), pictures, arguments.size)
        return
    if arguments.judge:
        print_verdicts(arguments, studio, predictor(denoiser))
        return
    if arguments.nearest:
        print_nearest(arguments, studio, predictor(denoiser))
        return
    assemble(arguments.folder, state / TOKENIZERS, vae, studio, denoiser)
    print(f"assembled {arguments.folder}")
    if arguments.bundle:
        for path in bundle(arguments.folder, HOME, steps_done(state)):
            print(f"wrote {path}, {path.stat().st_size} bytes")


def refuse_other_words(state: Path, text_steps: int) -> None:
    """Exit if the text encoders would learn on beneath a denoiser, which reads them as they are."""
    stages = emoji_text.NAME, emoji_denoiser.NAME
    if not all(path_of(state, stage).exists() for stage in stages):
        return
    done = steps_done(state, emoji_text.NAME)
    if done < text_steps:
        path = path_of(state, emoji_denoiser.NAME)
        sys.exit(
            f"{path} reads text encoders of {done} steps, not of {text_steps}: give --text-steps {done}, or "
            "--bundle it and move the file aside, and it is refitted to them"
        )


def print_verdicts(arguments: argparse.Namespace, studio: Studio, predict: Predict) -> None:
    """Teach the judge, if that is not done, and print what it finds."""
    judge = train_judge(arguments.state / "judge", arguments.judge_steps, studio.lesson.sprites)
    pictures = held_out(Range(arguments.num_things, _SHOWN_PAIRS), arguments.judge)
    for name, parts in judged(studio, predict, judge, pictures, arguments.size).items():
        print(name, ", ".join(f"{part} {100 * share:.1f} %" for part, share in sorted(parts.items())))


def print_nearest(arguments: argparse.Namespace, studio: Studio, predict: Predict) -> None:
    """Print how near drawings are to what they were to be, and to pictures that were trained on."""
    pictures = held_out(Range(arguments.num_things, _SHOWN_PAIRS), arguments.nearest)
    found = nearest(studio, predict, pictures, arguments.size, _NUM_COMPARED)
    asked, trained = (
        sorted(drawing.to_asked for drawing in found),
        sorted(drawing.to_trained for drawing in found),
    )
    nearer = sum(drawing.to_asked > drawing.to_trained for drawing in found)
    print(f"nearer to what was asked for than to any of {_NUM_COMPARED} trained on: {nearer} of {len(found)}")
    for name, column in (("asked for", asked), ("nearest trained on", trained)):
        print(f"{name}: {column[len(column) // 2]:.1f} dB in the middle, {column[-1]:.1f} dB at most")


def prepare(arguments: argparse.Namespace) -> Lesson:
    """Return what all stages learn from."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    things = drawn_things(load_things(arguments.packages), arguments.packages)
    sprites = load_sprites(things, arguments.packages, arguments.state)
    return Lesson(things, sprites, load_tokenizers(arguments.state / TOKENIZERS, things), device)


def learned(
    state: Path, lesson: Lesson, begun: Path | None
) -> tuple[AutoencoderKL, TextEncoders, FluxTransformer2DModel]:
    """Return the averaged weights of all stages as they are saved; see `train` for what is not there."""
    vae, denoiser = emoji_autoencoder.build(), emoji_denoiser.build()
    encoders = emoji_text.build(lesson.tokenize.num_words)
    load_averages(path_of(state, emoji_text.NAME), encoders.modules)
    if begun is not None:
        adopt_denoiser(begun, state, encoders, lesson)
    for name, modules in (
        (emoji_autoencoder.NAME, {"vae": vae}),
        (emoji_text.NAME, encoders.modules),
        (emoji_denoiser.NAME, {"denoiser": denoiser}),
    ):
        load_averages(path_of(state, name), modules)
        for module in modules.values():
            module.to(lesson.device)
    return vae, encoders, denoiser


def parse_arguments() -> argparse.Namespace:
    """Return the command line's arguments."""
    parser = argparse.ArgumentParser(description="Train tiny-emoji, stage by stage; stop and go on any time.")
    parser.add_argument("--state", type=Path, default=Path("out/tiny_emoji"), help="where stages are saved")
    parser.add_argument("--packages", type=Path, default=FOLDER, help="what `make emoji-packages` fetched")
    parser.add_argument("--from-nothing", action="store_true", help="do not begin with the bundled weights")
    parser.add_argument("--bundle", action="store_true", help="put what is learned among the bundled models")
    parser.add_argument("--show", type=Path, help="draw held-out pictures as they are so far into this PNG")
    parser.add_argument("--judge", type=int, metavar="PICTURES", help="measure so many held-out drawings")
    parser.add_argument("--nearest", type=int, metavar="PICTURES", help="look for copies among so many")
    parser.add_argument("--num-things", type=int, default=100, help="show or judge the first so many things")
    parser.add_argument("--size", type=int, nargs=2, default=(96, 96), help="width and height of these")
    parser.add_argument("--judge-steps", type=int, default=1_500)
    parser.add_argument("--assemble-only", action="store_true", help="train the denoiser no further")
    parser.add_argument("--folder", type=Path, default=Path("out") / NAME, help="the finished model")
    parser.add_argument("--vae-steps", type=int, default=2_000)
    parser.add_argument("--text-steps", type=int, default=5_000)
    parser.add_argument("--steps", type=int, default=100_000, help="of the denoiser")
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()
