"""FLUX's two text encoders: CLIP's pooled vector and T5's sequence.

T5's padding is never masked: the model was trained on padded prompts, so the padded length is a
parameter (`max_sequence_length`) and not an implementation detail.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from diffuserve.domain.params import GenerationParams
from diffuserve.models.base import Conditioning
from diffuserve.models.folder import ModelFolder
from diffuserve.models.pretrained import load_module, load_processor


@dataclass(frozen=True)
class FluxConditioning(Conditioning):
    """T5's output for each token, and CLIP's pooled vector."""

    sequence: Float[Tensor, "tokens dim"]
    pooled: Float[Tensor, "pooled_dim"]


class FluxTextEncoder:
    """CLIP and T5 with their tokenizers. `lowercase`: the checkpoint was trained on lowercase prompts."""

    def __init__(
        self, folder: ModelFolder, device: torch.device, dtype: torch.dtype, lowercase: bool
    ) -> None:
        from transformers import AutoTokenizer, CLIPTextModel, T5EncoderModel

        options: dict[str, Any] = {"dtype": dtype, "device_map": {"": str(device)}}
        self.clip = load_module(CLIPTextModel, folder.component("text_encoder"), **options)
        self.t5 = load_module(T5EncoderModel, folder.component("text_encoder_2"), **options)
        self.clip_tokenizer = load_processor(AutoTokenizer, folder.component("tokenizer"))
        self.t5_tokenizer = load_processor(AutoTokenizer, folder.component("tokenizer_2"))
        self.lowercase = lowercase
        self.device = device

    def encode(self, params: Sequence[GenerationParams]) -> list[FluxConditioning]:
        """Encode prompts of one `max_sequence_length` together."""
        assert len({wanted.max_sequence_length for wanted in params}) == 1
        prompts = [wanted.prompt.lower() if self.lowercase else wanted.prompt for wanted in params]
        length = params[0].max_sequence_length
        assert length is not None
        clip_ids, _ = self._tokenize(self.clip_tokenizer, prompts, self.clip_tokenizer.model_max_length)
        t5_ids, warnings = self._tokenize(self.t5_tokenizer, prompts, length)
        pooled = self.clip(clip_ids).pooler_output
        sequences = self.t5(t5_ids).last_hidden_state
        return [
            FluxConditioning(warning, sequence, vector)
            for warning, sequence, vector in zip(warnings, sequences, pooled, strict=True)
        ]

    def _tokenize(
        self, tokenizer: Any, prompts: list[str], length: int
    ) -> tuple[Int[Tensor, "prompts tokens"], list[tuple[str, ...]]]:
        """Return ids padded to `length`, and for each prompt a warning if it was cut."""
        padded = tokenizer(
            prompts, padding="max_length", max_length=length, truncation=True, return_tensors="pt"
        )
        full = padded.attention_mask.sum(dim=1) == length
        warnings = [
            _cut_warning(tokenizer, prompt, length) if is_full else ()
            for prompt, is_full in zip(prompts, full.tolist(), strict=True)
        ]
        return padded.input_ids.to(self.device), warnings


def _cut_warning(tokenizer: Any, prompt: str, length: int) -> tuple[str, ...]:
    num_tokens = len(tokenizer(prompt, verbose=False).input_ids)
    if num_tokens <= length:
        return ()
    return (f"the prompt has {num_tokens} tokens and the model reads {length}; the rest was cut off",)
