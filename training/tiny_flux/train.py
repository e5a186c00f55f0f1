"""Train the bundled model from nothing: images, captions, VAE, text encoders, denoiser, folder.

    python training/tiny_flux/train.py                    # into out/training, assembled in out/tiny-flux
    python training/tiny_flux/train.py --size-steps 40000 # a longer second course of the denoiser
    python training/tiny_flux/train.py --assemble-only    # from what there is, averaged weights

Stop it at any time; the same command goes on where it was. Every stage is saved every two minutes.
"""

import argparse
import sys
import warnings
from pathlib import Path

import torch

import autoencoder
import denoiser
import text_encoders
from assemble import assemble
from latents import encode_all
from loop import Stopped


def main() -> None:
    arguments = parse_arguments()
    warnings.filterwarnings("ignore", message="There are modules in")
    torch.set_num_threads(arguments.threads)
    arguments.state.mkdir(parents=True, exist_ok=True)
    try:
        train(arguments)
    except Stopped:
        sys.exit("stopped; everything is saved, and the same command goes on")


def train(arguments: argparse.Namespace) -> None:
    state: Path = arguments.state
    vae = autoencoder.train(state, arguments.vae_steps).requires_grad_(False)
    latents = encode_all(vae, state, arguments.images)
    encoders = text_encoders.train(state, arguments.text_steps)
    steps = (0, 0) if arguments.assemble_only else (arguments.steps, arguments.size_steps)
    flux = denoiser.train(state, steps, latents, encoders, is_compiled=not arguments.eager)
    assemble(arguments.folder, vae, latents[0], encoders, flux)
    print(f"assembled {arguments.folder}; now: python scripts/fit_preview_map.py {arguments.folder}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--state", type=Path, default=Path("out/training"), help="where stages are saved")
    parser.add_argument("--folder", type=Path, default=Path("out/tiny-flux"), help="the finished model")
    parser.add_argument("--vae-steps", type=int, default=9_000)
    parser.add_argument("--images", type=int, default=40_000, help="that the denoiser learns from")
    parser.add_argument("--text-steps", type=int, default=2_000)
    parser.add_argument("--steps", type=int, default=10_000, help="of the denoiser, native size")
    parser.add_argument("--size-steps", type=int, default=20_000, help="of the denoiser, all sizes")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--eager", action="store_true", help="do not compile the denoiser")
    parser.add_argument("--assemble-only", action="store_true", help="train the denoiser no further")
    return parser.parse_args()


if __name__ == "__main__":
    main()
