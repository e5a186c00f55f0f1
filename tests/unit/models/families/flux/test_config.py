"""The arithmetic of FLUX.1's size."""

import pytest
import torch

from diffuserve.models.families.flux.config import FluxConfig
from diffuserve.models.families.flux.transformer import FluxTransformer
from diffuserve.models.layers.attention import choose_kernel

FLUX_1 = FluxConfig()  # its defaults are those of the published model


def test_a_token_is_multiplied_by_the_weights_of_its_own_stream_alone() -> None:
    """Leave out modulation's 3.2 billion of 11.9, and half of a double block's others."""
    kernel = choose_kernel(torch.device("cpu"), torch.float32, deterministic=False)
    with torch.device("meta"):
        transformer = FluxTransformer(FLUX_1, kernel)
    weights = {name: weight.numel() for name, weight in transformer.named_parameters() if weight.dim() == 2}
    blocks = {name: count for name, count in weights.items() if "_blocks." in name and ".norm" not in name}
    single = sum(count for name, count in blocks.items() if name.startswith("single_"))
    double = sum(blocks.values()) - single
    assert sum(weights.values()) == pytest.approx(11.9e9, rel=0.005)
    assert FLUX_1.token_operations == 2 * (single + double // 2)


def test_a_step_of_the_published_model_has_the_operations_that_were_counted() -> None:
    """Count 69 TFLOP at 1360×768 with 256 tokens of text, of which 13 are attention."""
    tokens = 4_336
    attention = FLUX_1.pair_operations * tokens**2
    assert attention == pytest.approx(13.2e12, rel=0.01)
    assert FLUX_1.token_operations * tokens + attention == pytest.approx(69e12, rel=0.01)
