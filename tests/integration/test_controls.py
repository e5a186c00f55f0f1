"""Controls change their own requests alone, to the last bit, and go with requests that are resumed."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch

from diffuserve.domain.requests.control_use import ControlUse
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.config import EngineConfig
from diffuserve.engine.engine import Engine
from diffuserve.engine.requests.checkpoint import max_file_bytes
from diffuserve.engine.requests.checkpoint_file import read_checkpoint, write_checkpoint
from diffuserve.models.families.stable_diffusion.unet_input import ControlRows, UNetInput
from diffuserve.testing.checkpoints import write_flux_checkpoint
from diffuserve.testing.controlnet_checkpoints import write_flux_controlnet, write_unet_controlnet
from diffuserve.testing.unet_checkpoints import write_unet_checkpoint
from support.photos import photo

pytestmark = pytest.mark.filterwarnings("ignore:`FluxPosEmbed` is deprecated:FutureWarning")

FAMILIES: dict[str, tuple[Callable[..., Path], Callable[..., Path]]] = {
    "flux": (partial(write_flux_checkpoint, kind="dev"), write_flux_controlnet),
    "unet": (write_unet_checkpoint, write_unet_controlnet),
}
EDGES = photo(1, 64, 64)
VALUES: dict[str, Any] = {
    "width": 64,
    "height": 64,
    "num_inference_steps": 3,
    "guidance_scale": 4.0,
    "max_sequence_length": 16,
}
PLAIN = GenerationParams(prompt="a star", seed=1, **VALUES)
CONTROLLED = GenerationParams(
    prompt="a ring", seed=2, num_images=2, controls=(ControlUse("edges", EDGES, 0.7),), **VALUES
)

Load = Callable[..., Engine]


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Load]:
    """Return a function that loads each engine once."""

    @cache
    def folders(family: str) -> tuple[Path, Path]:
        write_model, write_net = FAMILIES[family]
        root = tmp_path_factory.mktemp(family)
        model = write_model(root / "model", seed=5)
        return model, write_net(root / "edges", model)

    with ExitStack() as stack:

        @cache
        def loaded(family: str, **options: Any) -> Engine:
            model, net = folders(family)
            config = EngineConfig(deterministic=True, token_budget=100_000, num_threads=1)
            engine = Engine.load(
                model, device="cpu", dtype="float32", config=config, controlnets={"edges": net}, **options
            )
            return stack.enter_context(engine)

        yield loaded


def pixels(engine: Engine, *requests: GenerationParams) -> list[list[bytes]]:
    return [[image.tobytes() for image in result.images] for result in engine.generate(requests)]


@pytest.mark.parametrize("family", FAMILIES)
def test_neighbors_of_a_control_are_as_they_are_alone(load: Load, family: str) -> None:
    engine = load(family)
    assert pixels(engine, PLAIN, CONTROLLED) == [*pixels(engine, PLAIN), *pixels(engine, CONTROLLED)]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_request_with_a_control_goes_on_to_the_last_bit(load: Load, family: str, tmp_path: Path) -> None:
    engine = load(family)
    [whole] = pixels(engine, CONTROLLED)
    request_id = engine.add(CONTROLLED)
    while not any(output.step == 1 for output in engine.step()):
        pass
    most = max_file_bytes(engine.pipeline, engine.spec.resolve(CONTROLLED, seed=0))
    path = tmp_path / "checkpoint.safetensors"
    write_checkpoint(path, engine.checkpoint(request_id), most)
    engine.abort(request_id)
    engine.add(CONTROLLED, resume=read_checkpoint(path, most))
    results = []
    while outputs := engine.step():
        results += [output.result for output in outputs if output.result is not None]
    assert [image.tobytes() for image in results[-1].images] == whole


@pytest.mark.parametrize("offload", ["layers", pytest.param("model", marks=pytest.mark.slow)])
@pytest.mark.parametrize("family", ["unet", pytest.param("flux", marks=pytest.mark.slow)])
def test_controlnets_stay_on_the_device_beside_an_offloaded_model(
    load: Load, family: str, offload: str
) -> None:
    assert pixels(load(family, offload=offload), CONTROLLED) == pixels(load(family), CONTROLLED)


def test_a_ranks_rows_have_their_own_controls() -> None:
    embedded = torch.arange(3.0)[:, None, None, None].expand(3, 2, 4, 4)
    control = ControlRows(lambda rows, features: [features], (1, 2, 4), (0.1, 0.2, 0.4), embedded)
    batch = UNetInput(torch.randn(5, 4, 4, 4), torch.ones(5), torch.randn(5, 2, 3), controls=(control,))
    (own,) = batch.take(range(3, 6)).controls  # the last row is repeated
    assert own.rows == (1, 2)
    assert own.weights == (0.4, 0.4)
    assert own.embedded[:, 0, 0, 0].tolist() == [2.0, 2.0]
    assert batch.take(range(1)).controls == ()
