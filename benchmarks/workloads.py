"""What the benchmarks play: frozen request lists and arrival times, drawn from a seed."""

import random
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from diffuserve.domain.params import GenerationParams

CHECKPOINT = Path(__file__).parent / "checkpoints" / "tiny-flux-ca0eb3156a89"

_COLOURS = (
    "red",
    "green",
    "blue",
    "yellow",
    "orange",
    "purple",
    "pink",
    "cyan",
    "brown",
    "black",
    "white",
    "gray",
)
_SHAPES = ("circle", "square", "triangle", "star", "heart", "ring", "cross", "diamond")
_SIZES = ("small", "medium", "large")


@dataclass(frozen=True)
class Arrivals:
    """Requests and the second at which each arrives."""

    requests: tuple[GenerationParams, ...]
    seconds: tuple[float, ...]


def mixed(count: int, seed: int) -> list[GenerationParams]:
    """Sizes 64-192 px, steps 2-8: the same shapes for every seed, other prompts and noise."""
    shapes, words = random.Random("shapes"), random.Random(seed)
    return [
        GenerationParams(
            prompt=_prompt(words),
            width=16 * shapes.randint(4, 12),
            height=16 * shapes.randint(4, 12),
            num_inference_steps=shapes.randint(2, 8),
            seed=words.randrange(2**31),
            max_sequence_length=32,
        )
        for _ in range(count)
    ]


def equal(count: int, seed: int, side: int) -> list[GenerationParams]:
    """Square images of one size, 4 steps."""
    words = random.Random(seed)
    return [
        GenerationParams(
            prompt=_prompt(words),
            width=side,
            height=side,
            num_inference_steps=4,
            seed=words.randrange(2**31),
            max_sequence_length=32,
        )
        for _ in range(count)
    ]


def poisson(count: int, seed: int, rate: float) -> Arrivals:
    """The mixed requests, arriving at `rate` a second without memory of one another."""
    clock, times = random.Random(f"clock {seed}"), []
    now = 0.0
    for _ in range(count):
        now += clock.expovariate(rate)
        times.append(now)
    return Arrivals(tuple(mixed(count, seed)), tuple(times))


def check_checkpoint() -> None:
    """The figures are those of one checkpoint; refuse to measure another under its name."""
    digest = sha256()
    for path in sorted(CHECKPOINT.rglob("*.safetensors"), key=lambda p: p.relative_to(CHECKPOINT).as_posix()):
        digest.update(path.read_bytes())
    expected = CHECKPOINT.name.rsplit("-", 1)[1]
    if not digest.hexdigest().startswith(expected):
        raise SystemExit(
            f"{CHECKPOINT}: weights have sha256 {digest.hexdigest()[:12]}…, expected {expected}…"
        )


def _prompt(words: random.Random) -> str:
    """One of about 10,000, so that no side profits from having seen it."""
    background = words.choice(_COLOURS)
    colour = words.choice([one for one in _COLOURS if one != background])
    return f"a {words.choice(_SIZES)} {colour} {words.choice(_SHAPES)} on a {background} background"
