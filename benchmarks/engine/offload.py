"""Measures what weights that wait on the host cost, and computes what they save of large models.

    python -m benchmarks offload --model /models/flux-schnell --label h100   # nothing else should run
    python -m benchmarks offload --only computed                             # holds on a busy machine

Measured: seconds to load, and of a step, of requests alone and eight at a time, in every mode in turn, and
the peak memory of a GPU. Without a GPU the host's memory is copied within itself, which tells that it works
and nothing of a GPU. Computed: the bytes of models in bf16 that stay on the device, those that are copied,
and the seconds of these copies at the speed of a bus, from the shapes of their weights.
"""

import argparse
import statistics
import time
from collections.abc import Sequence

import torch
from torch import Tensor

from benchmarks.shared.places import RESULTS
from benchmarks.shared.report import markdown_table, read_conditions, write_counted, write_report
from diffuserve import Engine, GenerationParams
from diffuserve.domain.models.offload import Offload
from diffuserve.domain.models.residency import Residency
from diffuserve.models.autoencoder.config import AutoencoderConfig
from diffuserve.models.autoencoder.decoder import ImageDecoder
from diffuserve.models.autoencoder.encoder import ImageEncoder
from diffuserve.models.families.flux.config import FluxConfig
from diffuserve.models.families.flux.transformer import FluxTransformer
from diffuserve.models.families.stable_diffusion.config import UNetConfig
from diffuserve.models.families.stable_diffusion.unet import UNet
from diffuserve.models.families.wan.config import WanTransformerConfig
from diffuserve.models.families.wan.transformer import WanTransformer
from diffuserve.models.layers.attention import choose_kernel
from diffuserve.models.offload.components import Component, place
from diffuserve.models.offload.copier import SyncCopier
from diffuserve.models.text.clip import ClipTextEncoder
from diffuserve.models.text.clip_config import ClipConfig
from diffuserve.models.text.t5 import T5Encoder
from diffuserve.models.text.t5_config import T5Config, Umt5Config
from diffuserve.models.video_autoencoder.config import VideoVaeConfig
from diffuserve.models.video_autoencoder.decoder import VideoDecoder
from diffuserve.models.video_autoencoder.encoder import VideoEncoder

META = torch.device("meta")
MODELS = ("FLUX.1", "SDXL", "Wan 2.2 A14B")
_BUS = (25e9, 50e9)  # bytes a second of PCIe 4 and 5, as others report of pinned memory
_XXL = T5Config(
    d_model=4096, d_kv=64, d_ff=10240, num_layers=24, num_heads=64, feed_forward_proj="gated-gelu"
)
_UMT5_XXL = Umt5Config(vocab_size=256384, d_model=4096, d_kv=64, d_ff=10240, num_layers=24, num_heads=64)
_CLIP_L = ClipConfig(hidden_size=768, intermediate_size=3072, num_attention_heads=12, projection_dim=768)
_CLIP_G = ClipConfig(
    hidden_size=1280,
    intermediate_size=5120,
    num_hidden_layers=32,
    num_attention_heads=20,
    hidden_act="gelu",
    projection_dim=1280,
)
_XL = UNetConfig(
    down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
    up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
    block_out_channels=(320, 640, 1280),
    transformer_layers_per_block=(1, 2, 10),
    attention_head_dim=(5, 10, 20),
    cross_attention_dim=2048,
    use_linear_projection=True,
    addition_embed_type="text_time",
    addition_time_embed_dim=256,
    projection_class_embeddings_input_dim=2816,
)

Row = dict[str, str]


class MetaCopier(SyncCopier):
    """Keeps sizes alone."""

    def host_run(self, num_bytes: int) -> Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8, device=META)


def main() -> None:
    arguments = parse_arguments()
    if arguments.only != "measured":
        rows = [row for model in MODELS for row in computed(model)]
        title = "Bytes of models in bf16, computed from their shapes, and seconds of copies at two speeds"
        text = told("computed", markdown_table(title, rows))
        if not arguments.quick:
            conditions = {name: read_conditions(())[name] for name in ("date", "commit")}
            write_counted(RESULTS / "offload-computed_shapes", {title: rows}, text, conditions)
    if arguments.only != "computed":
        rows = measured(arguments.model, 1 if arguments.quick else arguments.rounds)
        title = f"{arguments.model}, modes in turn"
        text = told("measured", markdown_table(title, rows))
        if not arguments.quick:
            write_report(
                RESULTS / f"offload-measured_{arguments.label}", {title: rows}, text, conditions_here()
            )


def told(part: str, table: str) -> str:
    """Print a table, and return the text of its report."""
    print(table)
    return f"# Weights that wait on the host: {part}\n\n{table}"


def computed(model: str) -> list[Row]:
    """Return a row for each mode of a model of full size."""
    whole = sum(parameter.nbytes for each in components(model) for parameter in each.module.parameters())
    rows = []
    for mode in Offload:
        found = place(components(model), mode, META, MetaCopier())
        device_bytes = whole if mode is Offload.NONE else found.device_bytes
        row = {"model": model, "mode": mode.value, "GB on the device": gigabytes(device_bytes)}
        if mode is not Offload.NONE:
            row |= {"on the host": gigabytes(found.host_bytes), **copies(found)}
        rows.append(row)
    return rows


def components(model: str) -> Sequence[Component]:
    with META:
        found = {"FLUX.1": _flux, "SDXL": _sdxl, "Wan 2.2 A14B": _wan}[model]()
    for each in found:
        each.module.to(torch.bfloat16)
    return found


def _flux() -> Sequence[Component]:
    kernel = choose_kernel(torch.device("cpu"), torch.bfloat16, deterministic=False)
    encoders = (ClipTextEncoder(_CLIP_L), T5Encoder(_XXL))
    transformer = FluxTransformer(FluxConfig(), kernel)
    return (*(encoder.component for encoder in encoders), transformer.component, *_vae(16))


def _sdxl() -> Sequence[Component]:
    encoders = (ClipTextEncoder(_CLIP_L), ClipTextEncoder(_CLIP_G, has_projection=True))
    return (*(encoder.component for encoder in encoders), UNet(_XL).component, *_vae(4))


def _wan() -> Sequence[Component]:
    kernel = choose_kernel(torch.device("cpu"), torch.bfloat16, deterministic=False)
    encoder = T5Encoder(_UMT5_XXL)
    experts = [WanTransformer(WanTransformerConfig(), kernel).component for _ in range(2)]
    config = VideoVaeConfig()
    halves = (Component(VideoEncoder(config)), Component(VideoDecoder(config), is_decoder=True))
    return (encoder.component, *experts, *halves)


def _vae(channels: int) -> Sequence[Component]:
    config = AutoencoderConfig((128, 256, 512, 512), latent_channels=channels, layers_per_block=2)
    return (Component(ImageEncoder(config)), Component(ImageDecoder(config), is_decoder=True))


def copies(found: Residency) -> Row:
    """Return what phases copy, and how long a step's copies take."""
    row = {
        "copied to encode": gigabytes(found.encode_bytes),
        "in a step": gigabytes(found.step_bytes),
        "to decode": gigabytes(found.decode_bytes),
    }
    seconds = {f"s at {rate / 1e9:.0f} GB/s": f"{found.step_bytes / rate:.2f}" for rate in _BUS}
    return row | (seconds if found.step_bytes else {})


def gigabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.2f}"


def measured(model: str, rounds: int) -> list[Row]:
    """Return a row for each mode: medians of loads in turn, and of requests alone and eight at a time."""
    loads: dict[Offload, list[float]] = {mode: [] for mode in Offload}
    steps: dict[tuple[Offload, int], list[float]] = {}
    places: dict[Offload, Row] = {}
    for _ in range(rounds):
        for mode in Offload:
            start = time.perf_counter()
            with Engine.load(model, offload=mode) as engine:
                loads[mode].append(time.perf_counter() - start)
                for count in (1, 8):
                    steps.setdefault((mode, count), []).append(step_seconds(engine, count))
                places[mode] = memory(engine)
    return [
        {
            "mode": mode.value,
            "load s": f"{statistics.median(loads[mode]):.2f}",
            "step s, alone": f"{statistics.median(steps[mode, 1]):.4f}",
            "of eight": f"{statistics.median(steps[mode, 8]):.4f}",
            "times none, alone": f"{slowdown(steps, mode, 1):.2f}",
            "times none, of eight": f"{slowdown(steps, mode, 8):.2f}",
            **places[mode],
        }
        for mode in Offload
    ]


def slowdown(steps: dict[tuple[Offload, int], list[float]], mode: Offload, count: int) -> float:
    return statistics.median(steps[mode, count]) / statistics.median(steps[Offload.NONE, count])


def step_seconds(engine: Engine, count: int) -> float:
    """Return the seconds of a step of so many requests together, the changes of turns among them."""
    wanted = [GenerationParams(prompt=f"a red circle {index}", seed=index) for index in range(count)]
    engine.generate(wanted)  # kernels are made for shapes when they are first met
    results = engine.generate(wanted)
    num_steps = engine.spec.num_inference_steps
    return max(result.timings.denoise_seconds for result in results) / num_steps


def memory(engine: Engine) -> Row:
    """Return where weights are, and a GPU's peak since the last call."""
    found, row = engine.pipeline.residency, {}
    if found.mode is not Offload.NONE:
        row = {
            "MB on the device": f"{found.device_bytes / 1e6:.1f}",
            "MB on the host": f"{found.host_bytes / 1e6:.1f}",
        }
    if torch.cuda.is_available():
        row["peak MB"] = f"{torch.cuda.max_memory_allocated() / 1e6:.0f}"
        torch.cuda.reset_peak_memory_stats()
    return row


def conditions_here() -> Row:
    gpu = {"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}
    return gpu | read_conditions(("torch",))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=("computed", "measured"))
    parser.add_argument("--model", default="tiny-flux", help="name or folder")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one round; write nothing")
    parser.add_argument("--label", default="cpu", help="names the machine in the result's file name")
    return parser.parse_args()


if __name__ == "__main__":
    main()
