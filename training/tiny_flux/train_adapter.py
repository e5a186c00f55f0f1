"""Train the bundled adapter: a color and a shape that tiny-flux does not know.

    python training/tiny_flux/train_adapter.py    # into out/training_adapter and out/copper-moon.safetensors

Stop it at any time; the same command goes on where it was.
"""

import argparse
import sys
import warnings
from pathlib import Path

import torch
from diffusers import AutoencoderKL, FluxTransformer2DModel
from transformers import CLIPTextModel, T5EncoderModel

from adapter_lessons import lesson_of
from denoiser import learn
from diffuserve.models.folders.pretrained import load_module
from latents import SIDE, Latents, encode
from loop import Course, Stopped, warm_then_linear
from low_rank import LowRank
from text_encoders import BUNDLED, TextEncoders

RANK = 4
LAYERS = (
    *("to_q", "to_k", "to_v", "to_out.0"),
    *("add_q_proj", "add_k_proj", "add_v_proj", "to_add_out"),
    *("net.0.proj", "net.2", "proj_mlp", "proj_out"),
    *("x_embedder", "context_embedder", "text_embedder.linear_1", "text_embedder.linear_2"),
)
"""Attention, feed-forward, and what goes in and out: blocks alone draw no color between those they know."""
_RATE, _BATCH = 4e-3, 16


def main() -> None:
    arguments = parse_arguments()
    warnings.filterwarnings("ignore", message="There are modules in")
    torch.set_num_threads(arguments.threads)
    arguments.state.mkdir(parents=True, exist_ok=True)
    try:
        train(arguments).save(arguments.file)
    except Stopped:
        sys.exit("stopped; everything is saved, and the same command goes on")
    print(f"wrote {arguments.file}; now: python training/tiny_flux/evaluate_adapter.py {arguments.file}")


def train(arguments: argparse.Namespace) -> LowRank:
    """Return the changes of the model's layers, as they are after all steps."""
    denoiser = load_module(FluxTransformer2DModel, BUNDLED / "transformer", torch_dtype=torch.float32)
    denoiser.set_attention_backend("_native_math")
    torch.manual_seed(4)
    changes = LowRank(denoiser, LAYERS, arguments.rank)
    optimizer = torch.optim.AdamW(changes.parameters(), lr=_RATE, betas=(0.9, 0.95), weight_decay=0)
    course = Course(
        "adapter", {"adapter": changes}, [optimizer], arguments.steps, warm_then_linear, arguments.state, 0.99
    )
    latents = lessons(arguments.state, arguments.images)
    learn(course, [latents], denoiser, encoders(), is_compiled=False, batch=_BATCH)
    return changes


def lessons(state: Path, count: int) -> Latents:
    """Return the images that it learns from, as the model's VAE encodes them."""
    vae = load_module(AutoencoderKL, BUNDLED / "vae", torch_dtype=torch.float32)
    tensors = encode(vae, state, count, SIDE, SIDE, lesson_of)
    return Latents(**tensors, shift=vae.config.shift_factor, scale=vae.config.scaling_factor, scene=lesson_of)


def encoders() -> TextEncoders:
    """Return the model's text encoders, frozen."""
    clip = load_module(CLIPTextModel, BUNDLED / "text_encoder", torch_dtype=torch.float32)
    t5 = load_module(T5EncoderModel, BUNDLED / "text_encoder_2", torch_dtype=torch.float32)
    for module in (clip, t5):
        module.requires_grad_(False).eval()
    return TextEncoders(clip, t5)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--state", type=Path, default=Path("out/training_adapter"), help="where it is saved")
    parser.add_argument("--file", type=Path, default=Path("out/copper-moon.safetensors"))
    parser.add_argument("--images", type=int, default=2_500)
    parser.add_argument("--steps", type=int, default=2_000)
    parser.add_argument("--rank", type=int, default=RANK)
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    main()
