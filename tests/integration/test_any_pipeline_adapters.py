"""Requests of any pipeline draw with adapters what diffusers' own pipeline does with them in its weights."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from diffuserve.domain.models.offload import Offload
from diffuserve.domain.requests.adapter_use import AdapterUse
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.config import EngineConfig
from diffuserve.engine.engine import Engine
from diffuserve.engine.outputs import GenerationResult
from diffuserve.models.families.any_pipeline.adapters.batch_adapters import UnevenRows
from diffuserve.models.families.any_pipeline.pipeline import AnyPipeline
from diffuserve.models.families.any_pipeline.proven import MIX_ADAPTERS, SHARE_PASSES
from diffuserve.models.families.any_pipeline.running import passes
from diffuserve.models.families.any_pipeline.running.call import Call
from diffuserve.models.families.any_pipeline.running.merging import run_merged
from diffuserve.models.layers.adapted.adapters import Uses
from diffuserve.models.layers.adapted.lora_pair import Components, LoraPair
from support.any_runs import check, finished, load_tiny, request_of, step
from support.any_runs import drawn as drawn_alone
from support.tiny_pipelines import TINY_PIPELINES, bare_pipeline, tiny_folder
from support.tiny_pipelines.requests import TinyRequest, mixed_requests
from support.tiny_pipelines.watched_engine import Levels, WatchedEngine, bare_levels, decibels

MIN_DECIBELS = 60.0  # float32 on a CPU
FAST = ("sd3",)
SLOW = (
    *(name for name, tiny in TINY_PIPELINES.items() if tiny.class_name in SHARE_PASSES and name not in FAST),
    "stable-diffusion",  # of the classes whose requests run one at a time
)
COMPONENTS = ("transformer", "unet", "text_encoder")
USES = ((), (AdapterUse("a", 0.7),), (AdapterUse("b", 1.3),), (AdapterUse("a", 0.5), AdapterUse("b", -0.5)))

pytestmark = [
    pytest.mark.filterwarnings("ignore:`FluxPosEmbed` is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The configuration file of this scheduler:FutureWarning"),
    pytest.mark.filterwarnings("ignore:In CPU autocast:UserWarning"),
    pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated:FutureWarning"),
]


@pytest.fixture(
    scope="module", params=[*FAST, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]
)
def name(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


@pytest.fixture(scope="module")
def folder(name: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(name, tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def bare(folder: Path) -> Any:
    return bare_pipeline(folder)


@pytest.fixture(scope="module")
def adapters(bare: Any) -> Mapping[str, Components]:
    return {"a": random_adapter(bare, 4, seed=1), "b": random_adapter(bare, 2, seed=2)}


def random_adapter(pipe: Any, rank: int, seed: int) -> Components:
    """Return changes of all layers of a denoiser, and of the encoder of texts that adapters know."""
    generator = torch.Generator().manual_seed(seed)
    parts = {name: getattr(pipe, name) for name in COMPONENTS if hasattr(pipe, name)}
    if not type(parts.get("text_encoder")).__name__.startswith("CLIP"):
        parts.pop("text_encoder", None)
    return {
        component: {name: _random_pair(layer, rank, generator) for name, layer in _layers(part)}
        for component, part in parts.items()
    }


def _layers(module: nn.Module) -> Iterator[tuple[str, Any]]:
    for name, layer in module.named_modules():
        if isinstance(layer, nn.Linear) or (isinstance(layer, nn.Conv2d) and layer.groups == 1):
            yield name, layer


def _random_pair(layer: Any, rank: int, generator: torch.Generator) -> LoraPair:
    outputs, *rest = layer.weight.shape
    down = torch.randn(rank, *rest, generator=generator) / layer.weight[0].numel() ** 0.5
    up = torch.randn(outputs, rank, *(1 for _ in rest[1:]), generator=generator) / rank**0.5
    return LoraPair(down, up, 0.2, torch.randn(outputs, generator=generator) / 20)


@contextmanager
def applied(pipe: Any, adapters: Mapping[str, Components], uses: Sequence[AdapterUse]) -> Iterator[None]:
    """Have a pipeline's weights and biases be those with adapters added."""
    kept = {
        name: {k: v.clone() for k, v in getattr(pipe, name).state_dict().items()} for name in adapters["a"]
    }
    with torch.no_grad():
        for use in uses:
            for component, pairs in adapters[use.name].items():
                for name, pair in pairs.items():
                    _change(getattr(pipe, component).get_submodule(name), pair, use.weight)
    yield
    for name, state in kept.items():
        part = getattr(pipe, name)
        for layer_name, layer in _layers(part):
            if f"{layer_name}.bias" not in state:
                layer.bias = None
        part.load_state_dict(state)


def _change(layer: Any, pair: LoraPair, weight: float) -> None:
    product = pair.up.flatten(1) @ pair.down.flatten(1)
    layer.weight += weight * pair.scale * product.view_as(layer.weight)
    assert pair.bias is not None
    before = torch.zeros_like(pair.bias) if layer.bias is None else layer.bias
    layer.bias = nn.Parameter(before + weight * pair.bias)


def requests_of(name: str) -> list[TinyRequest]:
    first, *others = mixed_requests(TINY_PIPELINES[name])
    alike = (first, *others[: len(USES) - 1])
    return [replace(first, prompt=each.prompt, seed=each.seed, steps=each.steps) for each in alike]


def test_every_class_that_shares_passes_is_compared_here() -> None:
    assert {TINY_PIPELINES[name].class_name for name in FAST + SLOW} >= SHARE_PASSES >= MIX_ADAPTERS


def test_mixed_requests_draw_what_diffusers_does(
    name: str,
    folder: Path,
    bare: Any,
    adapters: Mapping[str, Components],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tiny, requests = TINY_PIPELINES[name], requests_of(name)
    uneven = list[Exception]()

    def run(calls: Sequence[Call]) -> list[Any]:
        try:
            return run_merged(calls)
        except UnevenRows as error:
            uneven.append(error)
            raise

    monkeypatch.setattr(passes, "run_merged", run)
    watched = WatchedEngine(folder, adapters)
    asked = [each.params(tiny) for each in requests]
    with_adapters = [replace(each, adapters=uses) for each, uses in zip(asked, USES, strict=True)]
    with watched.engine:
        plain, rows_of_plain = drawn(watched, asked)
        drawn(watched, with_adapters)  # in which they wait for their adapters
        adapted, rows_of_adapted = drawn(watched, with_adapters)
    for request, uses in zip(requests, USES, strict=True):
        with applied(bare, adapters, uses):
            expected = bare_levels(bare, tiny, request)
        assert decibels(adapted[request.seed], expected) >= MIN_DECIBELS, uses
        if uses:
            assert decibels(adapted[request.seed], plain[request.seed]) < MIN_DECIBELS - 10, uses
    assert not uneven
    if tiny.class_name in MIX_ADAPTERS:
        assert rows_of_adapted == rows_of_plain, "requests of other adapters share passes"
        assert (adapted[requests[0].seed] == plain[requests[0].seed]).all(), "to the bit"


def drawn(
    watched: WatchedEngine, wanted: Sequence[GenerationParams]
) -> tuple[Mapping[int, Levels], list[int]]:
    """Return what requests get, by their seeds, and the rows of each pass."""
    watched.rows.clear()
    outcomes = watched.staggered(wanted)
    for outcome in outcomes:
        assert isinstance(outcome, GenerationResult), outcome
        assert not [warning for warning in outcome.warnings if "adapter" in warning], outcome.warnings
    return dict(watched.levels), list(watched.rows)


ASKED = (AdapterUse("a", 0.7),)


def uses_of(pipeline: AnyPipeline) -> Uses:
    """Return what `ASKED` asks for: an adapter of all layers of a loaded pipeline, on its device."""
    adapter = pipeline.place_adapter("a", random_adapter(pipeline._pipe, 4, seed=1))
    return ((adapter, 0.7),)


def test_half_done_work_goes_on_with_its_adapters(tmp_path: Path) -> None:
    pipeline = load_tiny("sd3", tmp_path)
    plain, uses = request_of(TINY_PIPELINES["sd3"], pipeline, num_steps=3), uses_of(pipeline)
    params = replace(plain, adapters=ASKED)
    expected = drawn_alone(pipeline, params, uses)
    assert expected != drawn_alone(pipeline, plain)
    begun = pipeline.begin(params, adapters=uses)
    check(*pipeline.encode([begun]))
    progress = next(step(pipeline, begun))
    begun.close()
    request = pipeline.begin(params, [progress], uses)
    check(*pipeline.encode([request]))
    list(step(pipeline, request, first=1))
    assert finished(pipeline, request) == expected


def test_adapters_are_with_layers_whose_weights_wait_on_the_host(tmp_path: Path) -> None:
    drawings = []
    for pipeline in (load_tiny("sd3", tmp_path), load_tiny("sd3", tmp_path, offload=Offload.LAYERS)):
        params = replace(request_of(TINY_PIPELINES["sd3"], pipeline, num_steps=2), adapters=ASKED)
        drawings.append(drawn_alone(pipeline, params, uses_of(pipeline)))
    assert drawings[0] == drawings[1]


def test_adapters_come_from_files_with_the_names_of_layers_in_diffusers(tmp_path: Path) -> None:
    folder, file = tiny_folder("sd3", tmp_path), tmp_path / "a.safetensors"
    pipeline = load_tiny("sd3", tmp_path)
    components = random_adapter(pipeline._pipe, 4, seed=1)
    tensors = {}
    for component, pairs in components.items():
        for layer, (down, up, scale, bias) in pairs.items():
            tensors[f"{component}.{layer}.lora_A.weight"] = down.contiguous()
            tensors[f"{component}.{layer}.lora_B.weight"] = (scale * up).contiguous()
            assert bias is not None
            tensors[f"{component}.{layer}.lora_B.bias"] = bias
    save_file(tensors, file)
    params = replace(request_of(TINY_PIPELINES["sd3"], pipeline, num_steps=2), adapters=ASKED)
    config = EngineConfig(num_threads=1)
    with Engine.load(folder, device="cpu", dtype="fp32", config=config, adapters={"a": file}) as engine:
        result = engine.generate(params)
    expected = drawn_alone(pipeline, params, uses_of(pipeline))
    assert [image.tobytes() for image in result.images] == expected
