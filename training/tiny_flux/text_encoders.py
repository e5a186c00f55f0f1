"""The text encoders, taught first what a caption says: words before images.

Both learn to name the parts of a scene; the heads that name them are thrown away. The tokenizers are
those that the package already ships: their words cover every caption, and unknown ones.
"""

import random
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoTokenizer, CLIPTextConfig, CLIPTextModel, T5Config, T5EncoderModel

from diffuserve.models.bundled import bundled_models
from diffuserve.models.folders.pretrained import load_processor
from loop import Course, warm_then_cosine
from scenes import COLORS, PLACES, RELATIONS, SHAPES, SIZES, Scene, caption, draw_scene

BUNDLED = bundled_models()["tiny-flux"]
NUM_TOKENS = 32
_BATCH = 96
_THING = (SHAPES, tuple(COLORS), (None, *SIZES), (None, *PLACES))
_WHOLE = ((None, *COLORS), (None, *RELATIONS))


class Tokenizers:
    """Captions as the two encoders read them."""

    def __init__(self) -> None:
        self._clip = load_processor(AutoTokenizer, BUNDLED / "tokenizer")
        self._t5 = load_processor(AutoTokenizer, BUNDLED / "tokenizer_2")

    def __call__(self, captions: list[str]) -> tuple[Tensor, Tensor]:
        """Token ids `(batch, NUM_TOKENS)` for CLIP and for T5, padded."""
        clip, t5 = (
            encoder(
                captions, padding="max_length", max_length=NUM_TOKENS, truncation=True, return_tensors="pt"
            ).input_ids
            for encoder in (self._clip, self._t5)
        )
        return clip, t5


@dataclass
class TextEncoders:
    clip: CLIPTextModel
    t5: T5EncoderModel

    def __call__(self, clip_ids: Tensor, t5_ids: Tensor) -> tuple[Tensor, Tensor]:
        """The pooled `(batch, 96)` and the token embeddings `(batch, NUM_TOKENS, 128)`."""
        return self.clip(clip_ids).pooler_output, self.t5(t5_ids).last_hidden_state

    @property
    def modules(self) -> dict[str, nn.Module]:
        return {"clip": self.clip, "t5": self.t5}


def build() -> TextEncoders:
    torch.manual_seed(1)
    clip = CLIPTextModel(CLIPTextConfig.from_json_file(BUNDLED / "text_encoder/config.json"))
    t5 = T5EncoderModel(T5Config.from_json_file(BUNDLED / "text_encoder_2/config.json"))
    return TextEncoders(clip.float(), t5.float())


def train(folder: Path, num_steps: int) -> TextEncoders:
    encoders, tokenize = build(), Tokenizers()
    heads = nn.ModuleDict({"pooled": _Head(96), "tokens": _Head(128)})
    modules = encoders.modules | {"heads": heads}
    parameters = [value for module in modules.values() for value in module.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1.5e-3, betas=(0.9, 0.98), weight_decay=1e-3)
    course = Course("text", modules, [optimizer], num_steps, warm_then_cosine, folder)

    def loss(_step: int, chance: random.Random) -> tuple[Tensor, dict[str, float]]:
        scenes = [draw_scene(chance) for _ in range(_BATCH)]
        pooled, tokens = encoders(*tokenize([caption(scene, chance) for scene in scenes]))
        labels = torch.tensor([labels_of(scene) for scene in scenes])
        from_pooled, pooled_right = heads["pooled"](pooled, labels)
        from_tokens, tokens_right = heads["tokens"](tokens.mean(1), labels)
        return from_pooled + from_tokens, {"pooled": pooled_right, "tokens": tokens_right}

    course.run(loss)
    course.averaged()
    return encoders


def labels_of(scene: Scene) -> list[int]:
    """Return each head's target class, or -100 where it has none.

    Of two objects the left or upper one comes first, whichever the caption names first: what stands
    where is told apart here, where it is cheap to learn, and not by the denoiser.
    """
    labels = []
    is_turned = scene.relation is not None and sum(RELATIONS[scene.relation]) > 0
    things = scene.things[::-1] if is_turned else scene.things
    for number in range(2):
        if number < len(things):
            thing = things[number]
            said = (thing.shape, thing.color, thing.size, thing.place)
            labels += [choices.index(word) for choices, word in zip(_THING, said, strict=True)]
        else:
            labels += [-100] * len(_THING)
    whole = (scene.background, scene.relation)
    return labels + [choices.index(word) for choices, word in zip(_WHOLE, whole, strict=True)]


class _Head(nn.Module):
    """Classifies every attribute of a scene from a single vector."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.sizes = [len(choices) for choices in (*_THING, *_THING, *_WHOLE)]
        self.name = nn.Linear(width, sum(self.sizes))

    def forward(self, vector: Tensor, labels: Tensor) -> tuple[Tensor, float]:
        """The loss, and the share of parts that are named right."""
        parts = self.name(vector).split(self.sizes, dim=1)
        losses = [functional.cross_entropy(part, label) for part, label in zip(parts, labels.T, strict=True)]
        right = torch.stack([part.argmax(1) for part in parts], dim=1)[labels >= 0] == labels[labels >= 0]
        return torch.stack(losses).sum(), float(right.float().mean())
