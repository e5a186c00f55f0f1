"""The stages of tiny-video's training, in order."""

import argparse
import sys
from pathlib import Path

import torch

import caption_encoder
import video_autoencoder
import video_denoiser
from checkpoints import adopt_model, load_average
from clip_latents import encode_all
from diffuserve.models.bundled import bundled_models
from evaluation import evaluate_autoencoder
from loop import Stopped
from video_folder import assemble
from words import load_tokenizer

_BUNDLED_STEPS = 20_500
"""Steps that the denoiser of the bundled model has done."""

DESCRIPTION = "Train tiny-video from nothing, stage by stage; stop and go on at any time."


def main() -> None:
    """Run every stage that is not done yet."""
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    arguments.state.mkdir(parents=True, exist_ok=True)
    if arguments.evaluate:
        print(evaluate(arguments.state, arguments.evaluate))
        return
    if arguments.resume:
        for name in adopt_model(find_model(arguments.resume), steps_so_far(arguments), arguments.state):
            print(f"{name}: goes on from the weights of {arguments.resume}")
    try:
        train(arguments)
    except Stopped:
        sys.exit("stopped; everything is saved, and the same command goes on")


def train(arguments: argparse.Namespace) -> None:
    """Train each part with the parts before it finished."""
    state: Path = arguments.state
    vae = video_autoencoder.train(state, arguments.vae_steps, not arguments.eager)
    vae.requires_grad_(False)
    tokenizer = load_tokenizer(state / "tokenizer")
    encoder = caption_encoder.train(state, arguments.text_steps, tokenizer).requires_grad_(False)
    latents = encode_all(vae, state, arguments.clips)
    denoiser = video_denoiser.train(state, arguments.steps, latents, encoder, tokenizer, not arguments.eager)
    assemble(arguments.folder, state / "tokenizer", vae, encoder, denoiser)
    print(f"assembled {arguments.folder}")


def find_model(model: str) -> Path:
    """Return the folder of a bundled model, or `model` itself."""
    return bundled_models().get(model, Path(model))


def steps_so_far(arguments: argparse.Namespace) -> dict[str, int]:
    """Return the steps that a finished model's stages have done: all, but for the denoiser."""
    return {
        video_autoencoder.NAME: arguments.vae_steps,
        caption_encoder.NAME: arguments.text_steps,
        video_denoiser.NAME: arguments.resume_at,
    }


def evaluate(state: Path, num_scenes: int) -> str:
    """Return a table of true clips, and of the same through the VAE as it is so far."""
    vae = video_autoencoder.build()
    load_average(state / f"{video_autoencoder.NAME}.safetensors", "vae", vae)
    return evaluate_autoencoder(vae, num_scenes)


def parse_arguments() -> argparse.Namespace:
    """Return the command line's arguments."""
    parser = argparse.ArgumentParser(description=DESCRIPTION)
    parser.add_argument(
        "--state", type=Path, default=Path("out/training_tiny_video"), help="where stages are saved"
    )
    parser.add_argument(
        "--resume", metavar="MODEL", help="tiny-video or a folder: begins the stages that are not saved"
    )
    parser.add_argument(
        "--resume-at", type=int, metavar="STEP", default=_BUNDLED_STEPS, help="of the denoiser"
    )
    parser.add_argument("--evaluate", type=int, metavar="SCENES", help="measure the VAE as it is, and end")
    parser.add_argument("--vae-steps", type=int, default=6_000)
    parser.add_argument("--text-steps", type=int, default=1_200)
    parser.add_argument("--clips", type=int, default=12_000, help="that the denoiser learns from")
    parser.add_argument("--steps", type=int, default=10_000, help="of the denoiser")
    parser.add_argument("--folder", type=Path, default=Path("out/tiny-video"), help="the finished model")
    parser.add_argument("--eager", action="store_true", help="compile nothing")
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()
