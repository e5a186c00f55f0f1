"""Ranks that share Qwen-Image's weights draw what one rank draws, and each has its part of them alone."""

from pathlib import Path

import pytest
import torch

from diffuserve.domain.requests.params import GenerationParams
from diffuserve.models.families.qwen_image.config import QwenImageConfig
from diffuserve.models.families.qwen_image.transformer import QwenImageTransformer
from diffuserve.models.layers.attention import choose_kernel
from diffuserve.parallel.plan import ParallelPlan
from diffuserve.parallel.ranks import Ranks, TensorRanks
from diffuserve.testing.qwen_image_checkpoints import write_qwen_image_checkpoint
from support.forked_ranks import run_on_ranks
from support.photos import photo
from support.shared_drawing import CPU, Drawn, draw, num_bytes, psnr

IMAGES = (photo(1, 60, 60), photo(2, 90, 50))
SIZES = [(64, 64, 3, 1), (96, 48, 4, 2), (128, 80, 2, 1)]
REQUESTS = [
    GenerationParams(
        prompt=f"a red circle {number}",
        width=width,
        height=height,
        num_inference_steps=steps,
        num_images=images,
        guidance_scale=1.0 + number,
        image=IMAGES[: 1 + number % 2],
    )
    for number, (width, height, steps, images) in enumerate(SIZES)
]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An editor, whose references have factors of their own."""
    folder = write_qwen_image_checkpoint(
        tmp_path_factory.mktemp("qwen"),
        kind="edit-2511",
        num_files=2,
        text_encoder={"num_key_value_heads": 4},
    )
    (folder / "diffuserve.json").write_text('{"max_reference_pixels": 4096}')
    return str(folder)


@pytest.fixture(scope="module")
def alone(checkpoint: str) -> Drawn:
    return draw(checkpoint, REQUESTS)


@pytest.mark.parametrize(
    ("text", "most"),
    [
        # Two ways at once do what each does.
        *(
            pytest.param(text, most, marks=pytest.mark.slow)
            for text, most in (("tensor=2", 0.6), ("sequence=2", 1.0), ("cfg=2", 1.0))
        ),
        ("tensor=2,sequence=2", 0.6),
        ("cfg=2,tensor=2", 0.6),
    ],
)
def test_ranks_draw_what_one_does(
    text: str, most: float, checkpoint: str, alone: Drawn, tmp_path: Path
) -> None:
    """Requests of several sizes, prompts, references and steps, guided and not, in one pass."""
    plan = ParallelPlan.parse(text)

    def program(ranks: Ranks) -> Drawn:
        torch.manual_seed(ranks.index)
        return draw(checkpoint, REQUESTS, ranks)

    for drawn in run_on_ranks(program, plan.num_ranks, tmp_path / "store", plan):
        assert min(map(psnr, drawn.latents, alone.latents)) >= 80
        shares = {name: num / alone.weight_bytes[name] for name, num in drawn.weight_bytes.items()}
        assert shares["QwenImageTransformer"] <= most
        assert (shares["QwenModel"] < 0.6) == ("tensor" in text)


class OneOfTwo(TensorRanks):
    """The first of two ranks, which exchanges nothing."""

    def __init__(self) -> None:
        self.index, self.size = 0, 2


def test_one_of_two_ranks_has_little_more_than_half_of_qwen_image() -> None:
    """The shapes are those of Qwen-Image; nothing is allocated."""
    with torch.device("meta"):
        transformer = QwenImageTransformer(QwenImageConfig(), choose_kernel(CPU, torch.float32))
        whole = num_bytes(transformer)
        transformer.share_weights(OneOfTwo())
    assert round(whole / 4e9, 1) == 20.4
    assert num_bytes(transformer) / whole < 0.51
