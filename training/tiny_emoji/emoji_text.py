"""The text encoders, taught first what a caption asks for: words before pictures.

Both learn to name the parts of a picture and to say what each thing looks like: its picture of 16 × 16
pixels. So the denoiser is told colors and outlines, and need not find out for each word by itself. The heads
are thrown away.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import CLIPTextConfig, CLIPTextModel, T5Config, T5EncoderModel

from emoji_tokenizers import CLIP_VOCABULARY, NUM_CLIP_TOKENS, Tokenizers
from loop import Course, warm_then_cosine
from pictures import BACKGROUNDS, Picture, Range, caption, draw_picture
from scenes import PLACES, RELATIONS, SIZES
from sprites import Sprites
from text_encoders import TextEncoders
from things import STYLES, Thing

NAME = "emoji_text"
HEADS = "heads"
WIDTH = 128
"""Of both encoders: of the pooled vector and of each token."""
_BATCH = 96
_PAIR_SHARE = 0.7  # single things are learned at once
_RATE = 2e-3
_LOOK = 16  # pixels along a side of the picture that the heads draw
_LOOK_WEIGHT = 8.0
_SLOTS = 2


def build(num_words: int) -> TextEncoders:
    torch.manual_seed(1)
    clip = CLIPTextConfig(
        vocab_size=CLIP_VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        projection_dim=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=NUM_CLIP_TOKENS,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=1,
    )
    t5 = T5Config(
        vocab_size=num_words,
        d_model=WIDTH,
        d_kv=32,
        d_ff=2 * WIDTH,
        num_layers=3,
        num_heads=4,
        relative_attention_max_distance=64,
        dropout_rate=0.0,
        feed_forward_proj="gated-gelu",
        is_encoder_decoder=False,
        use_cache=False,
    )
    return TextEncoders(CLIPTextModel(clip), T5EncoderModel(t5))


@dataclass(frozen=True)
class Lesson:
    """Material that the encoders are taught from."""

    things: Sequence[Thing]
    sprites: Sprites
    tokenize: Tokenizers
    device: torch.device


def train(folder: Path, num_steps: int, lesson: Lesson) -> TextEncoders:
    """Train for `num_steps` in all, or go on from `folder`; return both with averaged weights."""
    encoders, looks = build(lesson.tokenize.num_words), Looks(lesson.sprites, lesson.device)
    sizes = Sizes(len(lesson.things))
    heads = nn.ModuleDict({"pooled": Head(1, sizes), "tokens": Head(_SLOTS + 1, sizes)})
    modules: dict[str, nn.Module] = encoders.modules | {HEADS: heads}
    parameters = [value for module in modules.values() for value in module.to(lesson.device).parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=_RATE, betas=(0.9, 0.98), weight_decay=1e-3)
    course = Course(NAME, modules, [optimizer], num_steps, warm_then_cosine, folder, 0.995)

    def loss(_step: int, chance: random.Random) -> tuple[Tensor, dict[str, float]]:
        drawn = Range(len(lesson.things), _PAIR_SHARE)
        pictures = [draw_picture(chance, drawn) for _ in range(_BATCH)]
        captions = [caption(picture, lesson.things, chance) for picture in pictures]
        labels = torch.tensor([labels_of(picture) for picture in pictures], device=lesson.device)
        with torch.autocast(lesson.device.type, torch.bfloat16):
            clip_ids, t5_ids = lesson.tokenize(captions)
            pooled, tokens = encoders(clip_ids.to(lesson.device), t5_ids.to(lesson.device))
            said = {"pooled": heads["pooled"](pooled[:, None]), "tokens": heads["tokens"](tokens)}
        value, figures = torch.zeros((), device=lesson.device), {}
        for name, (answers, look) in said.items():
            named, figures[name] = naming(answers, labels)
            seen = looks.error(look.float(), labels)
            value = value + named + _LOOK_WEIGHT * seen
            figures[f"{name} look"] = float(seen.detach())
        return value, figures

    course.run(loss)
    course.averaged()
    return encoders


class Sizes:
    """Numbers of answers that each question about a picture has."""

    def __init__(self, num_things: int) -> None:
        self.of_slot = (num_things, 1 + len(SIZES), 1 + len(PLACES))
        self.of_whole = (len(STYLES), 1 + len(BACKGROUNDS), 1 + len(RELATIONS))


def labels_of(picture: Picture) -> list[int]:
    """Return the answer to each question, or -100 where there is none.

    Of two things the left or upper one comes first, whichever the caption names first.
    """
    is_turned = picture.relation is not None and sum(RELATIONS[picture.relation]) > 0
    items = picture.items[::-1] if is_turned else picture.items
    labels: list[int] = []
    for number in range(_SLOTS):
        if number < len(items):
            item = items[number]
            labels += [
                item.thing,
                (None, *SIZES).index(item.size),
                (None, *PLACES).index(item.place),
            ]
        else:
            labels += [-100] * 3
    return [
        *labels,
        STYLES.index(picture.style),
        (None, *BACKGROUNDS).index(picture.background),
        (None, *RELATIONS).index(picture.relation),
    ]


class Head(nn.Module):
    """Answers all questions from a few vectors, each a weighted mean of what the encoder gives."""

    def __init__(self, num_queries: int, sizes: Sizes) -> None:
        super().__init__()
        self.slot, self.whole = sizes.of_slot, sizes.of_whole
        self.is_single = num_queries == 1
        self.query = nn.Parameter(torch.randn(num_queries, WIDTH) / WIDTH**0.5)
        self.names = nn.ModuleList(nn.Linear(WIDTH, sum(self.slot)) for _ in range(_SLOTS))
        self.looks = nn.ModuleList(nn.Linear(WIDTH, 4 * _LOOK**2) for _ in range(_SLOTS))
        self.rest = nn.Linear(WIDTH, sum(self.whole))

    def forward(self, given: Tensor) -> tuple[list[Tensor], Tensor]:
        """Return logits of the answers, and looks `(batch, slots, values)`, of `(batch, n, width)`."""
        weights = torch.einsum("qw,bnw->bqn", self.query, given).softmax(-1)
        found = torch.einsum("bqn,bnw->qbw", weights, given)
        parts = [found[0]] * (_SLOTS + 1) if self.is_single else list(found)
        answers = [
            answer
            for name, part in zip(self.names, parts, strict=False)
            for answer in name(part).float().split(self.slot, dim=1)
        ]
        answers += self.rest(parts[-1]).float().split(self.whole, dim=1)
        looks = [look(part) for look, part in zip(self.looks, parts, strict=False)]
        return answers, torch.stack(looks, dim=1)


def naming(answers: Sequence[Tensor], labels: Tensor) -> tuple[Tensor, float]:
    """Return the loss, and the share of pictures of which every part is named right."""
    losses = [
        functional.cross_entropy(answer, label) for answer, label in zip(answers, labels.T, strict=True)
    ]
    named = torch.stack([answer.argmax(1) for answer in answers], dim=1)
    is_right = ((named == labels) | (labels < 0)).all(1)
    return torch.stack(losses).sum(), float(is_right.float().mean())


class Looks:
    """Every thing in each style as seen from afar: `(things, styles, 4 × look × look)`, centerd."""

    def __init__(self, sprites: Sprites, device: torch.device) -> None:
        small = [
            functional.interpolate(sprites.pixels[style].float(), size=_LOOK, mode="area").flatten(1) / 255
            for style in STYLES
        ]
        looks = torch.stack(small, dim=1)
        looks = looks - looks.mean(0)
        self._looks = (looks / looks.std()).to(device)

    def error(self, drawn: Tensor, labels: Tensor) -> Tensor:
        """Return the mean squared error for the slots that have a thing; 1 is knowing nothing."""
        things, styles = labels[:, [0, 3]], labels[:, 6:7].expand(-1, _SLOTS)
        is_there = things >= 0
        true = self._looks[things.clamp(min=0), styles]
        return (drawn - true)[is_there].square().mean()
