"""OperationCount of a model's parts, counted by the names and shapes of their weights; no class is known.

The counts are a start: the engine's cost model refits them on the first live steps, within a factor of 50.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from diffuserve.domain.models.cost import CostFit
from diffuserve.models.families.any_pipeline.reading.configs import AUTOENCODERS, DENOISERS
from diffuserve.models.folders.folder import ModelFolder

Shapes = Mapping[str, Sequence[int]]

_LOOKED_UP = re.compile(r"embed_tokens|shared\.|token_embedding|position|word_embedding|lm_head")
_OF_A_REQUEST = re.compile(r"norm\w*\.linear|ada|time|t_embedder|modulation|_mod\.|pooled")
"""Weights that are used once for a sequence, and not for each of its tokens."""
_OF_TEXT = re.compile(r"add_|context|txt_|caption|text_|encoder_hidden|vision|visual")
_QUERIES = re.compile(r"(\bto_q|q_proj|wq|query|\bq)\.weight$")
_CROSS = re.compile(r"attn2|cross|add_")
_LEVEL = re.compile(r"\b(down|up)(?:_blocks|samples|sample_blocks)?\.(\d{1,9})\.")
_MAX_LEVEL = 16  # names come from anywhere, and a level is an exponent
_FAST, _SLOW, _LARGE = 1e14, 1e11, 1e9
"""Operations a second of a GPU and of a few cores, and the weights from which on a model has a GPU."""


@dataclass(frozen=True)
class OperationCount:
    """Floating-point operations of a forward pass: of each token, pair of tokens and sequence.

    `text_token` are those of the text encoders, and `pixel` those of decoding a pixel of a latent frame.
    `widest` is the largest number of features of a token anywhere in the denoiser.
    """

    token: float
    pair: float
    sequence: float
    text_token: float
    pixel: float
    widest: int
    num_weights: int

    def fit(self, rate: float) -> CostFit:
        """Return the fit of a device with so many operations a second."""
        return CostFit(
            (5e-3, self.text_token / rate),
            (2e-3, self.token / rate, self.pair / rate, 1e-4 + self.sequence / rate),
            (5e-3, self.pixel / rate),
        )

    @property
    def usual_rate(self) -> float:
        """Operations a second of a device that such a model is likely to have."""
        return _FAST if self.num_weights > _LARGE else _SLOW


def count_operations(folder: ModelFolder) -> OperationCount:
    """Count by the headers of a folder's files; what is not on this machine counts as little."""
    shapes = {name: _read_shapes(folder, name) for name in _components(folder)}
    first = next((shapes[name] for name in DENOISERS if name in shapes), {})
    texts = [found for name, found in shapes.items() if name.startswith("text_encoder")]
    decoder = next((shapes[name] for name in AUTOENCODERS if name in shapes), {})
    return operations_of(first, texts, decoder)


def operations_of(denoiser: Shapes, texts: Sequence[Shapes], autoencoder: Shapes) -> OperationCount:
    """Count by the shapes of weights."""
    linear = _matrices(denoiser)
    once = {name for name in linear if _OF_A_REQUEST.search(name)}
    own = {name: linear[name] for name in linear if name not in once and not _OF_TEXT.search(name)}
    queries = [shape[0] for name, shape in own.items() if _QUERIES.search(name) and not _CROSS.search(name)]
    return OperationCount(
        token=max(2.0 * _shrunk(own), 1.0),
        pair=max(4.0 * sum(queries), 1.0),
        sequence=2.0 * sum(math.prod(linear[name]) for name in once),
        text_token=max(2.0 * sum(map(_text_weights, texts)), 1.0),
        pixel=max(2.0 * _decoder_weights(autoencoder), 1.0),
        widest=max((shape[0] for shape in own.values() if len(shape) == 2), default=4096),
        num_weights=sum(math.prod(shape) for shape in denoiser.values()),
    )


def _matrices(shapes: Shapes) -> Shapes:
    """Return the weights that multiply; a first axis of length 1 is that of a table."""
    return {name: shape for name, shape in shapes.items() if len(shape) > 1 and shape[0] > 1}


def _text_weights(shapes: Shapes) -> int:
    used = (name for name in _matrices(shapes) if not _LOOKED_UP.search(name) and not _OF_TEXT.search(name))
    return sum(math.prod(shapes[name]) for name in used)


def _decoder_weights(shapes: Shapes) -> float:
    """Return the weights of a decoder by the pixels that each works on; a patch of pixels is one place."""
    decoder = {name: shape for name, shape in _matrices(shapes).items() if name.startswith("decoder.")}
    last = next((shape[0] for name, shape in decoder.items() if "conv_out" in name), 3)
    return _shrunk(decoder) / max(last / 3, 1)


def _shrunk(shapes: Shapes) -> float:
    """Return the number of weights, those at a lower resolution counted as fewer: each level has a fourth."""
    found = {name: match for name in shapes if (match := _LEVEL.search(name))}
    levels = {name: (match[1], min(int(match[2]), _MAX_LEVEL)) for name, match in found.items()}
    lowest = max((index for _, index in levels.values()), default=0)

    def level(name: str) -> int:
        if name not in levels:
            is_inner = "mid" in name or ("conv_in" in name and name.startswith("decoder."))
            return lowest if is_inner else 0
        way, index = levels[name]
        return index if way == "down" else lowest - index

    return sum((math.prod(shape) / 4 ** level(name) for name, shape in shapes.items()), 0.0)


def _components(folder: ModelFolder) -> Iterable[str]:
    known = {*DENOISERS, *AUTOENCODERS}
    return [name for name in folder.index if name in known or name.startswith("text_encoder")]


def _read_shapes(folder: ModelFolder, component: str) -> Shapes:
    """Return the shapes of a component's weights; a broken file counts as none, and is named by the check."""
    from safetensors import SafetensorError, safe_open

    found: dict[str, Sequence[int]] = {}
    for file in folder.weight_files((component,)):
        with suppress(SafetensorError, OSError), safe_open(file, framework="numpy") as opened:
            found |= {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118
    return found
