"""Z-Image's prompts, as a user's message to Qwen 3, of which the last layer but one is read.

Reference implementation: `encode_prompt` of diffusers' `ZImagePipeline`. Prompts are not padded here; the
transformer's own blocks refine and pad them.
"""

from collections.abc import Sequence

from diffuserve.domain.models.spec import ModelSpec
from diffuserve.models.families.packed_images.loading import load_transformer
from diffuserve.models.families.packed_images.texts import GuidedTexts, TextStates
from diffuserve.models.families.z_image.captions import CaptionRefiner
from diffuserve.models.families.z_image.config import READ_STATES, ZImageConfig
from diffuserve.models.families.z_image.transformer import WEIGHTS as STEP_WEIGHTS
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.layers.adapted.adapters import Uses
from diffuserve.models.layers.attention import choose_kernel
from diffuserve.models.layers.quantized.quantized_layers import QuantizedLayers
from diffuserve.models.offload.components import Component
from diffuserve.models.text.chat import QWEN3_CHAT
from diffuserve.models.text.encoder_ranks import EncoderRanks
from diffuserve.models.text.qwen import PackedPrompts, load_qwen
from diffuserve.models.text.qwen_config import QwenConfig
from diffuserve.models.text.tokenizer import PromptText, PromptTokenizer
from diffuserve.models.weights.load_plan import LoadPlan

_NOTHING = QuantizedLayers("")  # a prompt is refined once, and every step depends on it


class ZImageTextEncoder(GuidedTexts):
    """Qwen 3 with its tokenizer, and the blocks that refine prompts.

    They are on the meta device if they are not loaded. Ranks that share weights encode together.
    """

    def __init__(self, folder: ModelFolder, spec: ModelSpec, config: ZImageConfig, plan: LoadPlan) -> None:
        self.spec, self.device = spec, plan.device
        kernel = choose_kernel(plan.device, plan.chosen_dtype, plan.deterministic)
        qwen, files = QwenConfig.read(folder, "text_encoder"), folder.weights("text_encoder")
        self._ranks = EncoderRanks.of(plan, qwen.shared)
        self.largest = load_qwen(qwen, files, plan, kernel, READ_STATES, self._ranks.sharing)
        self.refiner = load_transformer(
            lambda: CaptionRefiner(config, kernel), _NOTHING, folder, plan, ignored_prefixes=STEP_WEIGHTS
        )
        self.tokenizer = PromptTokenizer.read(folder, "tokenizer", plan.is_wanted, QWEN3_CHAT)

    @property
    def components(self) -> Sequence[Component]:
        return (self.largest.component, self.refiner.component)

    def encode_texts(self, texts: Sequence[PromptText], adapters: Sequence[Uses]) -> list[TextStates]:
        """Encode texts in one row, and refine each with its adapters."""
        read = [self.tokenizer.tokenize([text.words], text.length, subject=text.subject) for text in texts]
        prompts = PackedPrompts.of([tokens.rows[0] for tokens in read], self.device)
        with self._ranks.together():
            [states] = self.largest(prompts)
            refined = self.refiner(states, prompts.lengths, adapters)
        pairs = zip(refined, read, strict=True)
        return [TextStates(states.clone(), tokens.warnings[0]) for states, tokens in pairs]
