"""FLUX's two text encoders: CLIP's pooled vector and T5's sequence.

T5's padding is never masked: the model was trained on padded prompts, so the padded length is a
parameter (`max_sequence_length`) and not an implementation detail.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from jaxtyping import Float
from torch import Tensor, nn

from diffuserve.domain.requests.params import GenerationParams
from diffuserve.models.families.packed_images.conditioning import ImageConditioning
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.layers.adapted.adapters import RowAdapters, Uses
from diffuserve.models.offload.components import Component
from diffuserve.models.pipelines.batches import run_in_groups
from diffuserve.models.text.clip import load_clip
from diffuserve.models.text.clip_config import ClipConfig
from diffuserve.models.text.encoder_ranks import EncoderRanks
from diffuserve.models.text.t5 import load_t5
from diffuserve.models.text.t5_config import T5Config
from diffuserve.models.text.tokenizer import PromptTokenizer
from diffuserve.models.weights.load_plan import LoadPlan


@dataclass(frozen=True)
class FluxConditioning(ImageConditioning):
    """T5's output for each token, CLIP's pooled vector, and the request's images, if any.

    The `masked` image is given by the mean and deviation of its latents, and so are the `controls` that
    ControlNets read as latents; of others there are the tokens.
    """

    pooled: Float[Tensor, "pooled_dim"] = field(kw_only=True)
    masked: Float[Tensor, "2 latent_channels height width"] | None = None
    controls: tuple[Tensor, ...] = ()


class FluxTextEncoder:
    """CLIP and T5 with their tokenizers; on the meta device if they are not loaded.

    `lowercase`: the checkpoint was trained on lowercase prompts. Ranks that share T5's weights encode
    together.
    """

    def __init__(
        self,
        folder: ModelFolder,
        plan: LoadPlan,
        lowercase: bool,
    ) -> None:
        clip_config = ClipConfig.read(folder, "text_encoder")
        t5_config = T5Config.read(folder, "text_encoder_2")
        clip_files, t5_files = folder.weights("text_encoder"), folder.weights("text_encoder_2")
        self.clip = load_clip(clip_config, clip_files, plan)
        self._ranks = EncoderRanks.of(plan, t5_config.shared)
        self.t5 = load_t5(t5_config, t5_files, plan, self._ranks.sharing)
        self.clip_tokenizer = PromptTokenizer.read(folder, "tokenizer", plan.is_wanted)
        # A folder may say that its tokenizer has no limit; the model has one.
        self.clip_length = min(self.clip_tokenizer.max_length, clip_config.max_position_embeddings)
        self.t5_tokenizer = PromptTokenizer.read(folder, "tokenizer_2", plan.is_wanted)
        self.lowercase = lowercase
        self.device = plan.device

    @property
    def largest(self) -> nn.Module:
        return self.t5

    @property
    def components(self) -> Sequence[Component]:
        return (self.clip.component, self.t5.component)

    def key(self, params: GenerationParams) -> Hashable:
        return (params.prompt, params.max_sequence_length)

    def encode(
        self, params: Sequence[GenerationParams], adapters: Sequence[Uses], one_by_one: bool
    ) -> Sequence[FluxConditioning]:
        """Encode prompts of one length together, or each by itself. Adapters change CLIP alone."""
        adapted = list(zip(params, adapters, strict=True))
        if one_by_one:
            return [self._encode([each])[0] for each in adapted]
        return run_in_groups(adapted, lambda each: each[0].max_sequence_length, self._encode)

    def _encode(self, adapted: Sequence[tuple[GenerationParams, Uses]]) -> list[FluxConditioning]:
        params, uses = [each for each, _ in adapted], [own for _, own in adapted]
        prompts = [wanted.prompt.lower() if self.lowercase else wanted.prompt for wanted in params]
        length = params[0].max_sequence_length
        assert length is not None
        clip_tokens = self.clip_tokenizer.tokenize(prompts, self.clip_length)
        t5_tokens = self.t5_tokenizer.tokenize(prompts, length)
        adapters = RowAdapters.of([1] * len(prompts), uses)
        pooled = self.clip(clip_tokens.ids.to(self.device), adapters).pooled
        ids = t5_tokens.ids.to(self.device)
        with self._ranks.together():
            sequences = self.t5(ids)
        return [
            FluxConditioning(warning, (sequence,), pooled=vector)
            for warning, sequence, vector in zip(t5_tokens.warnings, sequences, pooled, strict=True)
        ]
