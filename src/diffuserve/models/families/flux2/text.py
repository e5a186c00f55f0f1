"""FLUX.2's text encoder: the states of a language model after three of its layers, side by side.

Prompts are padded, and the padding is part of what the transformer reads: its states depend on the prompt,
though nothing in the language model attends to them. So the padded length is a parameter
(`max_sequence_length`). Reference implementations: `encode_prompt` of diffusers' `Flux2Pipeline` and
`Flux2KleinPipeline`.
"""

from collections.abc import Sequence

import torch

from diffuserve.domain.models.spec import ModelSpec
from diffuserve.models.families.flux2.prompts import prompt_reading
from diffuserve.models.families.packed_images.texts import GuidedTexts, TextStates
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.layers.adapted.adapters import Uses
from diffuserve.models.layers.attention import choose_kernel
from diffuserve.models.offload.components import Component
from diffuserve.models.pipelines.batches import run_in_groups
from diffuserve.models.text.encoder_ranks import EncoderRanks
from diffuserve.models.text.qwen import PackedPrompts, load_qwen
from diffuserve.models.text.qwen_config import QwenConfig
from diffuserve.models.text.tokenizer import PromptText, PromptTokenizer
from diffuserve.models.weights.load_plan import LoadPlan

_IMAGE = "[IMG]"  # stands for an image among Mistral's tokens: a prompt's own would ask for one


class Flux2TextEncoder(GuidedTexts):
    """The language model with its tokenizer; on the meta device if they are not loaded.

    Ranks that share its weights encode together.
    """

    def __init__(self, folder: ModelFolder, spec: ModelSpec, plan: LoadPlan) -> None:
        self.spec, self.device = spec, plan.device
        kernel = choose_kernel(plan.device, plan.chosen_dtype, plan.deterministic)
        config, files = QwenConfig.read(folder, "text_encoder"), folder.weights("text_encoder")
        reading = prompt_reading(folder)
        self._ranks = EncoderRanks.of(plan, config.shared)
        self.largest = load_qwen(config, files, plan, kernel, reading.states, self._ranks.sharing)
        self.tokenizer = PromptTokenizer.read(folder, "tokenizer", plan.is_wanted, reading.template)

    @property
    def components(self) -> Sequence[Component]:
        return (self.largest.component,)

    def encode_texts(self, texts: Sequence[PromptText], adapters: Sequence[Uses]) -> list[TextStates]:
        """Encode texts in one row for each padded length. No adapter changes how."""
        return run_in_groups(texts, lambda text: text.length, self._encode)

    def _encode(self, texts: Sequence[PromptText]) -> list[TextStates]:
        words = [text.words.replace(_IMAGE, "") for text in texts]
        tokens = self.tokenizer.tokenize(words, texts[0].length)
        packed = PackedPrompts.padded(tokens.ids, tokens.mask, self.device)
        with self._ranks.together():
            states = torch.cat(self.largest(packed), dim=-1)
        rows = zip(states.split(packed.lengths), tokens.warnings, strict=True)
        return [TextStates(row.clone(), warnings) for row, warnings in rows]
