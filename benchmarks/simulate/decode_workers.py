"""Simulate a fleet that may decode elsewhere, with the product's own policy, over load and prices.

    python -m benchmarks decode-fleet --plot docs/images/decode-workers.svg

Clips arrive at random at a fixed fleet of GPUs, whose workers do both phases (`never`), hand every clip over
to decode workers (`always`), or choose as the product does (`policy`, `diffuserve.jobs.policy.handover`).
Prices and speeds are inputs; their defaults are assumptions, stated below, and no measurement.
"""

import argparse
import heapq
import random
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from diffuserve.jobs.policy.handover import Decoding, QueueLoads, hands_over

PRICES_AS_OF = "assumed in 2026-11 after tables of GPU clouds; put in your own with --gpu-price"


@dataclass(frozen=True)
class Machine:
    """A machine to rent: dollars per hour, and TFLOP a second that it does in a transformer and in a VAE."""

    name: str
    price_per_hour: float
    transformer_tflops: float
    decode_tflops: float


# Sustained: 40 % of a card's dense bfloat16 peak in the transformer, 20 % in the VAE's convolutions.
GPU = Machine("H100", 8.00, 0.40 * 989, 0.20 * 989)
DECODERS = (
    Machine("A10G", 1.00, 0.40 * 125, 0.20 * 125),
    Machine("A10G spot", 0.35, 0.40 * 125, 0.20 * 125),
    Machine("CPU, 32 cores", 1.30, 1.5, 1.5),
)


@dataclass(frozen=True)
class Clip:
    """Work of one clip: TFLOP of all passes and of decoding, and bytes of its latents."""

    name: str
    denoise_tflop: float
    decode_tflop: float
    latent_bytes: int


# Wan: TFLOP a pass and a decode, counted; 50 steps of two passes.
CLIPS = (
    Clip("Wan 2.1 1.3B, 832x480, 81 frames", 100 * 283, 275, 8_400_000),
    Clip("Wan 2.1 1.3B distilled, 4 steps of one pass", 4 * 283, 275, 8_400_000),
    Clip("Wan 2.2 5B, 1280x704, 121 frames", 100 * 518, 2_011, 21_000_000),
    Clip("Wan 2.2 5B distilled, 4 steps of one pass", 4 * 518, 2_011, 21_000_000),
)


@dataclass
class Fleet:
    """A simulation: `gpus` workers that denoise, `decoders` that decode, and the clips under way."""

    clip: Clip
    gpu: Machine
    decoder: Machine
    gpus: int
    decoders: int
    mode: str
    now: float = 0.0
    waiting: deque[float] = field(default_factory=deque)
    denoised: deque[float] = field(default_factory=deque)
    idle_gpus: int = 0
    idle_decoders: int = 0
    num_decoding: int = 0
    latencies: list[float] = field(default_factory=list)
    num_handed_over: int = 0
    events: list[tuple[float, int, str, float]] = field(default_factory=list)
    num_events: int = 0

    def __post_init__(self) -> None:
        self.idle_gpus, self.idle_decoders = self.gpus, self.decoders

    @property
    def denoise_seconds(self) -> float:
        return self.clip.denoise_tflop / self.gpu.transformer_tflops

    @property
    def decoding(self) -> Decoding:
        """Return the second phase of a clip, here and on a decode worker."""
        here = self.clip.decode_tflop / self.gpu.decode_tflops
        there = self.clip.decode_tflop / self.decoder.decode_tflops
        return Decoding(here, there, self.clip.latent_bytes)

    def run(self, arrivals: Sequence[float]) -> None:
        for arrival in arrivals:
            self.schedule(arrival, "arrives", arrival)
        while self.events:
            self.now, _, what, arrival = heapq.heappop(self.events)
            getattr(self, what)(arrival)
            self.start_what_can()

    def schedule(self, when: float, what: str, arrival: float) -> None:
        self.num_events += 1
        heapq.heappush(self.events, (when, self.num_events, what, arrival))

    def arrives(self, arrival: float) -> None:
        self.waiting.append(arrival)

    def leaves_gpu(self, arrival: float) -> None:
        self.idle_gpus += 1
        self.latencies.append(self.now - arrival)

    def is_denoised(self, arrival: float) -> None:
        self.idle_gpus += 1
        self.schedule(self.now + self.decoding.transfer_seconds, "is_transferred", arrival)

    def is_transferred(self, arrival: float) -> None:
        self.denoised.append(arrival)

    def leaves_decoder(self, arrival: float) -> None:
        self.idle_decoders += 1
        self.num_decoding -= 1
        self.latencies.append(self.now - arrival)

    def start_what_can(self) -> None:
        while self.idle_gpus and self.waiting:
            self.idle_gpus -= 1
            arrival = self.waiting.popleft()
            if self.goes_elsewhere():
                self.num_handed_over += 1
                self.num_decoding += 1
                self.schedule(self.now + self.denoise_seconds, "is_denoised", arrival)
            else:
                whole = self.denoise_seconds + self.decoding.here_seconds
                self.schedule(self.now + whole, "leaves_gpu", arrival)
        while self.idle_decoders and self.denoised:
            self.idle_decoders -= 1
            self.schedule(self.now + self.decoding.there_seconds, "leaves_decoder", self.denoised.popleft())

    def goes_elsewhere(self) -> bool:
        if self.mode != "policy" or not self.decoders:
            return self.mode == "always" and self.decoders > 0
        whole = self.denoise_seconds + self.decoding.here_seconds
        backlog_seconds = self.num_decoding * self.decoding.there_seconds / self.decoders
        around = QueueLoads(
            waiting_jobs=len(self.waiting) / self.gpus,
            waiting_seconds=len(self.waiting) * whole / self.gpus,
            decode_wait_seconds=max(backlog_seconds - self.denoise_seconds, 0.0),
            price_ratio=self.decoder.price_per_hour / self.gpu.price_per_hour,
        )
        return hands_over(self.decoding, around)


@dataclass(frozen=True)
class Figures:
    """Outcome of one fleet: mean and 95th percentile of seconds, dollars a clip, share decoded elsewhere."""

    mean_seconds: float
    p95_seconds: float
    dollars_per_clip: float
    share_elsewhere: float


def play(fleet: Fleet, load: float, num_clips: int, seed: int) -> Figures:
    """Play clips that arrive at `load` times what the GPUs could do if they decoded everything themselves."""
    dice = random.Random(seed)
    whole = fleet.denoise_seconds + fleet.decoding.here_seconds
    rate = load * fleet.gpus / whole
    arrivals, now = [], 0.0
    for _ in range(num_clips):
        now += dice.expovariate(rate)
        arrivals.append(now)
    fleet.run(arrivals)
    hours = fleet.now / 3_600
    price = fleet.gpus * fleet.gpu.price_per_hour + fleet.decoders * fleet.decoder.price_per_hour
    return Figures(
        statistics.mean(fleet.latencies),
        statistics.quantiles(fleet.latencies, n=20)[-1],
        price * hours / num_clips,
        fleet.num_handed_over / num_clips,
    )


def decoders_for(clip: Clip, gpu: Machine, decoder: Machine, gpus: int) -> int:
    """Return the decode workers that keep up with the GPUs if those decode nothing."""
    there = clip.decode_tflop / decoder.decode_tflops
    return max(1, -int(-gpus * there // (clip.denoise_tflop / gpu.transformer_tflops)))


def capacity_dollars(clip: Clip, gpu: Machine, decoder: Machine | None) -> float:
    """Return dollars a clip of a saturated fleet, with or without decoding elsewhere."""
    denoise, here = clip.denoise_tflop / gpu.transformer_tflops, clip.decode_tflop / gpu.decode_tflops
    if decoder is None:
        return (denoise + here) * gpu.price_per_hour / 3_600
    there = clip.decode_tflop / decoder.decode_tflops
    return (denoise * gpu.price_per_hour + there * decoder.price_per_hour) / 3_600


LOADS = (0.5, 0.7, 0.8, 0.9, 0.95, 1.0, 1.1, 1.3)
RATIOS = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--clips", type=int, default=3_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--gpu-price", type=float, default=GPU.price_per_hour, help="dollars per hour")
    parser.add_argument("--plot", type=Path, help="SVG of the last clip over load and price ratio")
    options = parser.parse_args()
    gpu = Machine(GPU.name, options.gpu_price, GPU.transformer_tflops, GPU.decode_tflops)
    print(f"prices: {PRICES_AS_OF}; {gpu.name} {gpu.price_per_hour:.2f} $/h, seed {options.seed}")
    for clip in CLIPS:
        _print_clip(clip, gpu, options)
    if options.plot is not None:
        options.plot.write_text(_plot(_grid(CLIPS[-1], gpu, options)))


def _print_clip(clip: Clip, gpu: Machine, options: argparse.Namespace) -> None:
    denoise, here = clip.denoise_tflop / gpu.transformer_tflops, clip.decode_tflop / gpu.decode_tflops
    print(f"\n{clip.name}: denoise {denoise:.1f} s, decode {here:.1f} s on {gpu.name}")
    print(f"  saturated, all on {gpu.name}: {capacity_dollars(clip, gpu, None):.4f} $ a clip")
    for decoder in DECODERS:
        there = clip.decode_tflop / decoder.decode_tflops
        number = decoders_for(clip, gpu, decoder, options.gpus)
        dollars = capacity_dollars(clip, gpu, decoder)
        price = f"{decoder.price_per_hour:.2f} $/h, decode {there:.1f} s"
        print(f"  {number} x {decoder.name} ({price}): saturated {dollars:.4f} $ a clip")
        for load in (0.7, 0.95, 1.1):
            for mode in ("never", "always", "policy"):
                fleet = Fleet(clip, gpu, decoder, options.gpus, 0 if mode == "never" else number, mode)
                found = play(fleet, load, options.clips, options.seed)
                print(
                    f"    load {load:4.2f} {mode:6}: mean {found.mean_seconds:7.1f} s, "
                    f"p95 {found.p95_seconds:7.1f} s, {found.dollars_per_clip:.4f} $ a clip, "
                    f"{found.share_elsewhere:4.0%} elsewhere"
                )


def _grid(clip: Clip, gpu: Machine, options: argparse.Namespace) -> dict[tuple[float, float], float]:
    """Return the share that the policy hands over, by load and price of decoders that are 8 times slower."""
    shares = {}
    for ratio in RATIOS:
        decoder = Machine("decoder", ratio * gpu.price_per_hour, 0.0, gpu.decode_tflops / 8)
        number = decoders_for(clip, gpu, decoder, options.gpus)
        for load in LOADS:
            fleet = Fleet(clip, gpu, decoder, options.gpus, number, "policy")
            shares[load, ratio] = play(fleet, load, options.clips, options.seed).share_elsewhere
    return shares


def _plot(shares: dict[tuple[float, float], float]) -> str:
    """Draw the grid as SVG: the darker, the more is decoded elsewhere."""
    cell, left, top = 64, 110, 50
    width, height = left + cell * len(LOADS) + 20, top + cell * len(RATIOS) // 2 + 60
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{left}" y="20">Share of clips that the policy has decoded elsewhere</text>',
        f'<text x="{left}" y="{height - 12}">load, in what the GPUs can do alone</text>',
        f'<text x="8" y="{top - 8}">price ratio</text>',
    ]
    for row, ratio in enumerate(RATIOS):
        y = top + row * cell // 2
        parts.append(f'<text x="60" y="{y + 21}">{ratio:g}</text>')
        for column, load in enumerate(LOADS):
            share, x = shares[load, ratio], left + column * cell
            shade = round(255 - 175 * share)
            parts.append(
                f'<rect x="{x}" y="{y}" width="{cell}" height="{cell // 2}" '
                f'fill="rgb({shade},{shade},255)" stroke="white"/>'
                f'<text x="{x + 14}" y="{y + 21}">{share:.0%}</text>'
            )
    y = top + len(RATIOS) * cell // 2 + 18
    parts += [f'<text x="{left + i * cell + 18}" y="{y}">{load:g}</text>' for i, load in enumerate(LOADS)]
    return "\n".join([*parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    main()
