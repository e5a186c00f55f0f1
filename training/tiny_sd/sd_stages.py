"""The stages of tiny-sd's training, in order."""

import argparse
import sys
import warnings
from pathlib import Path

import torch

import unet
import wish_encoders
from habit_latents import OTHER_SIZES, SIDE, encode, load_vae
from loop import Stopped
from sd_folder import assemble

DESCRIPTION = "Train tiny-sd, stage by stage; stop and go on at any time."


def main() -> None:
    """Run every stage that is not done yet."""
    arguments = parse_arguments()
    warnings.filterwarnings("ignore", message="There are modules in")
    torch.set_num_threads(arguments.threads)
    arguments.state.mkdir(parents=True, exist_ok=True)
    try:
        train(arguments)
    except Stopped:
        sys.exit("stopped; everything is saved, and the same command goes on")


def train(arguments: argparse.Namespace) -> None:
    """Train each part with the parts before it finished."""
    state: Path = arguments.state
    vae = load_vae()
    encoders = wish_encoders.train(state, arguments.text_steps)
    steps, latents = 0, []
    if not arguments.assemble_only:
        steps, latents = arguments.steps, [encode(vae, state, arguments.images, (SIDE, SIDE))]
        if arguments.other_images:
            latents += [encode(vae, state, arguments.other_images, size) for size in OTHER_SIZES]
    network = unet.train(state, steps, latents, encoders, is_compiled=arguments.compile)
    assemble(arguments.folder, vae, encoders, network)
    print(f"assembled {arguments.folder}")


def parse_arguments() -> argparse.Namespace:
    """Return the command line's arguments."""
    parser = argparse.ArgumentParser(description=DESCRIPTION)
    parser.add_argument(
        "--state", type=Path, default=Path("out/training_tiny_sd"), help="where stages are saved"
    )
    parser.add_argument("--folder", type=Path, default=Path("out/tiny-sd"), help="the finished model")
    parser.add_argument("--images", type=int, default=12_000, help="that the UNet learns from")
    parser.add_argument("--other-images", type=int, default=0, help="of each other size")
    parser.add_argument("--text-steps", type=int, default=800)
    parser.add_argument("--steps", type=int, default=6_000, help="of the UNet")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--compile", action="store_true", help="compile the UNet: minutes, then faster steps")
    parser.add_argument("--assemble-only", action="store_true", help="train the UNet no further")
    return parser.parse_args()
