"""The two tokenizers, made of the words that captions have."""

import json
import random
import shutil
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer
from torch import Tensor
from transformers import AutoTokenizer

from diffuserve.models.folders.pretrained import load_processor
from pictures import Range, caption, draw_picture, vocabulary
from text_encoders import BUNDLED
from things import Thing

NUM_TOKENS = 32
"""Of T5: a word is a token."""
NUM_CLIP_TOKENS = 48
CLIP_VOCABULARY = 2560
_CLIP, _T5 = "tokenizer", "tokenizer_2"
_END = "<|endoftext|>"
_NUM_CAPTIONS = 20_000


class Tokenizers:
    """Captions as the two encoders read them, by the tokenizers stored in a folder."""

    def __init__(self, folder: Path) -> None:
        self._clip = load_processor(AutoTokenizer, folder / _CLIP)
        self._t5 = load_processor(AutoTokenizer, folder / _T5)

    @property
    def num_words(self) -> int:
        """Return how many tokens T5's table has."""
        return len(self._t5)

    def __call__(self, captions: list[str]) -> tuple[Tensor, Tensor]:
        """Return token ids for CLIP, as many as the longest needs, and for T5 `(batch, NUM_TOKENS)`.

        CLIP looks back only, and is read at the end of the caption: what pads it makes no difference.
        """
        clip: Tensor = self._clip(
            captions, padding="longest", max_length=NUM_CLIP_TOKENS, truncation=True, return_tensors="pt"
        ).input_ids
        t5: Tensor = self._t5(
            captions, padding="max_length", max_length=NUM_TOKENS, truncation=True, return_tensors="pt"
        ).input_ids
        return clip, t5


def load_tokenizers(folder: Path, things: Sequence[Thing]) -> Tokenizers:
    """Return the tokenizers of `folder`, written first if they are not there.

    They are kept with the weights: another run might break ties among merges in another way.
    """
    if not (folder / _T5 / "tokenizer.json").exists():
        write_tokenizers(folder, things)
    return Tokenizers(folder)


def write_tokenizers(folder: Path, things: Sequence[Thing]) -> None:
    """Write tiny-flux's tokenizers with the words of these things' captions instead of its own."""
    clip, t5 = _clip_model(things), _t5_pieces(vocabulary(things))
    for name, model, length in ((_CLIP, clip, NUM_CLIP_TOKENS), (_T5, {"vocab": t5}, NUM_TOKENS)):
        (folder / name).mkdir(parents=True, exist_ok=True)
        tokenizer = json.loads((BUNDLED / name / "tokenizer.json").read_text())
        tokenizer["model"] |= model
        (folder / name / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False))
        config = json.loads((BUNDLED / name / "tokenizer_config.json").read_text())
        config["model_max_length"] = length
        (folder / name / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def copy_tokenizers(source: Path, folder: Path) -> None:
    for name in (_CLIP, _T5):
        shutil.copytree(source / name, folder / name, dirs_exist_ok=True)


def _t5_pieces(words: Sequence[str]) -> list[list[object]]:
    """Return a piece for each word, after tiny-flux's marks for padding, the end and punctuation."""
    bundled = json.loads((BUNDLED / _T5 / "tokenizer.json").read_text())["model"]["vocab"]
    marks = [piece for piece in bundled if not piece[0].startswith("▁") or piece[0] == "▁"]
    return [*marks, *([f"▁{word}", -2.0] for word in words)]


def _clip_model(things: Sequence[Thing]) -> dict[str, object]:
    """Return words and merges of a byte-pair encoding that is learned from captions."""
    tokenizer = Tokenizer.from_file(str(BUNDLED / _CLIP / "tokenizer.json"))
    tokenizer.model = BPE(unk_token=_END, end_of_word_suffix="</w>")
    trainer = BpeTrainer(
        vocab_size=CLIP_VOCABULARY,
        special_tokens=["<|startoftext|>", _END],
        initial_alphabet=ByteLevel.alphabet(),
        end_of_word_suffix="</w>",
        show_progress=False,
    )
    chance, drawn = random.Random("captions"), Range(len(things), 0.5)
    tokenizer.train_from_iterator(
        (caption(draw_picture(chance, drawn), things, chance) for _ in range(_NUM_CAPTIONS)), trainer
    )
    model = json.loads(tokenizer.to_str())["model"]
    return {"vocab": model["vocab"], "merges": model["merges"]}
