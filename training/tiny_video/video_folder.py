"""The trained parts as a folder of a `WanPipeline` in diffusers' format, bf16, ready to be served."""

import json
from pathlib import Path

import torch
from diffusers import AutoencoderKLWan, UniPCMultistepScheduler, WanPipeline, WanTransformer3DModel
from transformers import AutoTokenizer, PreTrainedTokenizerBase, UMT5EncoderModel

from diffuserve.models.folders.pretrained import load_processor
from video_autoencoder import NUM_FRAMES, SIDE
from words import NUM_TOKENS

SETTINGS = {
    "name": "tiny-video",
    "width": SIDE,
    "height": SIDE,
    "num_frames": NUM_FRAMES,
    "fps": 8,
    "num_inference_steps": 4,
    "guidance_scale": 1.0,
    "max_sequence_length": NUM_TOKENS,
    "longest_sequence_length": NUM_TOKENS,
    "min_size": 32,
    "max_size": 256,
    "max_pixels": 256 * 256,
    "max_frames": 2 * NUM_FRAMES - 1,
    "learned_min_size": SIDE,
    "learned_max_size": SIDE,
}
"""Of `diffuserve.json`, beside the preview map."""


def scheduler() -> UniPCMultistepScheduler:
    """Return Wan's sampler set up as Euler's: of order 1, with neither a corrector nor a shift.

    Noise levels are then 1, 3/4, 1/2 and 1/4 for four steps, as `clip_walks` trains them.
    """
    return UniPCMultistepScheduler(
        prediction_type="flow_prediction",
        use_flow_sigmas=True,
        flow_shift=1.0,
        solver_order=1,
        disable_corrector=list(range(100)),
    )


def assemble(
    folder: Path,
    tokenizer_folder: Path,
    vae: AutoencoderKLWan,
    encoder: UMT5EncoderModel,
    denoiser: WanTransformer3DModel,
) -> None:
    """Write everything to `folder`. A timestep a token lets the same weights continue a first frame."""
    tokenizer = load_processor(AutoTokenizer, tokenizer_folder)
    teach_capitals(encoder, tokenizer)
    pipeline = WanPipeline(
        tokenizer=tokenizer,
        text_encoder=encoder.to(torch.bfloat16),
        vae=vae.to(torch.bfloat16),
        scheduler=scheduler(),
        transformer=denoiser.to(torch.bfloat16),
        expand_timesteps=True,
    )
    pipeline.save_pretrained(folder)
    for path in folder.rglob("*.safetensors"):
        path.chmod(0o644)  # weights are written for their owner alone
    (folder / "diffuserve.json").write_text(json.dumps(SETTINGS, indent=2) + "\n")


@torch.no_grad()
def teach_capitals(encoder: UMT5EncoderModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Give "Red" the embedding of "red": they mean the same, and only one of them was trained."""
    vocabulary = tokenizer.get_vocab()
    table = encoder.get_input_embeddings().weight
    for piece, index in vocabulary.items():
        if piece != piece.lower() and piece.lower() in vocabulary:
            table[index] = table[vocabulary[piece.lower()]]
