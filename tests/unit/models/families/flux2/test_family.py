"""FLUX.2's folders say what their models can do."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from diffuserve.domain.errors import InvalidModel, InvalidParams
from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.requests.input_image import InputImage
from diffuserve.models.families.flux2.config import Flux2Config
from diffuserve.models.families.flux2.family import FLUX2
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.registry import known_families, load_family
from diffuserve.testing.flux2_checkpoints import Flux2Kind, write_flux2_checkpoint

IMAGE = InputImage.blank(80, 64)
KINDS: tuple[Flux2Kind, ...] = ("klein", "base", "dev")
Folder = Callable[..., ModelFolder]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[Flux2Kind, Path]:
    return {kind: write_flux2_checkpoint(tmp_path_factory.mktemp(kind), kind=kind) for kind in KINDS}


@pytest.fixture
def folder(checkpoints: dict[Flux2Kind, Path], tmp_path: Path) -> Folder:
    """Return a copy of a checkpoint's configs with some values changed."""

    def build(kind: Flux2Kind = "klein", **changes: dict[str, Any]) -> ModelFolder:
        for file in checkpoints[kind].rglob("*.json"):
            copy = tmp_path / file.relative_to(checkpoints[kind])
            copy.parent.mkdir(exist_ok=True, parents=True)
            copy.write_bytes(file.read_bytes())
        for component, values in changes.items():
            stem = "scheduler_config" if component == "scheduler" else "config"
            file = tmp_path / component / f"{stem}.json"
            file.write_text(json.dumps(json.loads(file.read_text()) | values))
        return ModelFolder(tmp_path)

    return build


def resolved(spec: ModelSpec, **values: Any) -> Any:
    return spec.resolve(spec.simple_request("a star", **values), seed=0)


@pytest.mark.parametrize("name", ["Flux2Pipeline", "Flux2KleinPipeline", "Flux2KleinInpaintPipeline"])
def test_its_classes_are_of_this_family(name: str) -> None:
    assert load_family(known_families()[name]) is FLUX2


@pytest.mark.parametrize(
    ("kind", "steps", "guidance", "passes", "has_mask"),
    [("klein", 4, 0.0, 1, True), ("base", 50, 4.0, 2, True), ("dev", 50, 4.0, 1, False)],
)
def test_each_kind_has_defaults_and_guidance_of_its_own(
    folder: Folder, kind: Flux2Kind, steps: int, guidance: float, passes: int, has_mask: bool
) -> None:
    spec = FLUX2.read_spec(folder(kind))
    request = resolved(spec)
    assert (request.num_inference_steps, request.guidance_scale) == (steps, guidance)
    assert (spec.num_passes(request), spec.has_mask) == (passes, has_mask)
    assert (request.width, request.height, request.max_sequence_length) == (1024, 1024, 512)


@pytest.mark.parametrize(
    ("kind", "values", "words"),
    [
        ("klein", {"guidance_scale": 4.0}, "^guidance_scale=.* has no guidance; leave it out or give 0"),
        ("base", {"negative_prompt": "ugly"}, "^negative_prompt="),
        ("dev", {"image": IMAGE, "mask": IMAGE}, "^mask=.* fills nothing in"),
        ("base", {"image": IMAGE, "strength": 0.5}, "^strength=.* give a mask too, or leave strength out"),
        ("klein", {"image": (IMAGE,) * 11}, "^image=11: .* at most 10"),
        ("klein", {"image": InputImage.blank(80, 63)}, "^image=.*80x63.* at least 64 pixels a side"),
        ("klein", {"width": 65}, "^width=65.*64 or 80"),
        ("klein", {"max_sequence_length": 513}, "^max_sequence_length=513.*at most 512"),
    ],
)
def test_requests_that_a_kind_cannot_draw_are_refused(
    folder: Folder, kind: Flux2Kind, values: dict[str, Any], words: str
) -> None:
    spec = FLUX2.read_spec(folder(kind))
    with pytest.raises(InvalidParams, match=words):
        resolved(spec, **values)


def test_references_are_tokens_and_a_mask_is_where_drawing_starts(folder: Folder) -> None:
    spec = FLUX2.read_spec(folder())
    several = resolved(spec, image=[IMAGE] * 10)
    assert spec.reference_tokens(several) == 10 * 5 * 4
    assert (several.width, several.height) == (80, 64)
    masked = resolved(spec, image=[IMAGE, IMAGE], mask=IMAGE, num_inference_steps=28, width=96, height=64)
    assert (masked.strength, spec.num_steps(masked)) == (0.8, 23)
    assert spec.reference_tokens(masked) == (6 + 5) * 4


@pytest.mark.parametrize(
    ("kind", "changes", "words"),
    [
        ("klein", {"transformer": {"in_channels": 64}}, "in_channels=64 .* must be 128, four times the VAE"),
        ("klein", {"vae": {"latent_channels": 16}}, "must be 64, four times the VAE's latent_channels=16"),
        ("klein", {"text_encoder": {"hidden_size": 64}}, "hidden_size=64, but .* and hidden_size=32; take"),
        ("klein", {"text_encoder": {"num_hidden_layers": 26}}, "num_hidden_layers=26, but states"),
        ("dev", {"text_encoder": {"text_config": None, "model_type": "qwen3"}}, "text_encoder"),
        ("klein", {"transformer": {"axes_dims_rope": [4, 4, 4, 6]}}, "axes_dims_rope=.4, 4, 4, 6. must be"),
        ("klein", {"transformer": {"mlp_ratio": 4.0}}, "mlp_ratio=4.0"),
        ("klein", {"transformer": {"patch_size": 2}}, "patch_size=2"),
        ("klein", {"scheduler": {"_class_name": "DDIMScheduler"}}, "_class_name='DDIMScheduler' is not"),
    ],
)
def test_parts_that_do_not_fit_are_refused(
    folder: Folder, kind: Flux2Kind, changes: dict[str, dict[str, Any]], words: str
) -> None:
    with pytest.raises(InvalidModel, match=words):
        FLUX2.read_spec(folder(kind, **changes))


def test_a_step_of_klein_has_the_operations_that_were_counted() -> None:
    """Count 34.8 TFLOP at 1024×1024 with 512 tokens of text, 6.1 G a token."""
    klein = Flux2Config(num_layers=5, num_single_layers=20, num_attention_heads=24, joint_attention_dim=7680)
    tokens = 64 * 64 + 512
    assert klein.token_operations == pytest.approx(6.1e9, rel=0.01)
    assert klein.token_operations * tokens + klein.pair_operations * tokens**2 == pytest.approx(
        34.8e12, rel=0.01
    )
