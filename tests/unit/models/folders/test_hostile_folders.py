"""A model folder of any content is loaded or refused as invalid: no other error, no endless work."""

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from diffuserve.domain.errors import InvalidModel
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.registry import load_pipeline, read_offer
from diffuserve.models.weights.load_plan import LoadPlan
from diffuserve.models.weights.loading import Placement, checkpoint_dtype, load_weights
from diffuserve.safety.classifiers.text_model import read_config
from diffuserve.testing.checkpoints import write_flux_checkpoint
from diffuserve.testing.flux2_checkpoints import write_flux2_checkpoint
from diffuserve.testing.qwen_image_checkpoints import write_qwen_image_checkpoint
from diffuserve.testing.unet_checkpoints import write_unet_checkpoint
from diffuserve.testing.wan_checkpoints import write_wan_checkpoint

CPU = torch.device("cpu")
CONFIGS = (
    "model_index.json",
    "diffuserve.json",
    "transformer/config.json",
    "vae/config.json",
    "scheduler/scheduler_config.json",
)
UNET_CONFIGS = (
    "model_index.json",
    "diffuserve.json",
    "unet/config.json",
    "vae/config.json",
    "text_encoder/config.json",
    "text_encoder_2/config.json",
    "scheduler/scheduler_config.json",
)
FLUX2_CONFIGS = (*CONFIGS, "text_encoder/config.json")
EDITOR_CONFIGS = (*FLUX2_CONFIGS, "processor/processor_config.json")
WAN_CONFIGS = (
    "model_index.json",
    "diffuserve.json",
    "transformer/config.json",
    "vae/config.json",
    "text_encoder/config.json",
    "image_encoder/config.json",
    "image_processor/preprocessor_config.json",
    "scheduler/scheduler_config.json",
)
LOADED = (
    *CONFIGS,
    "text_encoder/config.json",
    "text_encoder_2/config.json",
    "tokenizer/tokenizer_config.json",
)
TRANSFORMER = "transformer/diffusion_pytorch_model.safetensors"
FUZZ = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

numbers = st.one_of(
    st.integers(-3, 8), st.sampled_from([2**31, 2**63, 10**30, 1e9, 1e308, -1e308, 0.0, -0.5, 1e-300])
)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, st.sampled_from(["", "../../x", "a\0b", "auto", "é" * 300])),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=5,
)
DEEP = b"[" * 100_000 + b"]" * 100_000


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_flux_checkpoint(tmp_path_factory.mktemp("sound") / "flux")
    (folder / "diffuserve.json").write_text(json.dumps({"name": "flux", "width": 64, "height": 64}))
    return folder


@pytest.fixture
def folder(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "flux"))


def tolerates(load: Callable[[], object]) -> InvalidModel | None:
    """Call `load`, and return the refusal; any other error is the test's failure."""
    try:
        load()
    except InvalidModel as refusal:
        return refusal
    return None


def change(folder: Path, file: str, **changes: Any) -> None:
    path = folder / file
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | changes))


@pytest.mark.parametrize("file", LOADED)
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"text"',
        b"\xff",
        DEEP,
        b'{"a":' * 5_000,
        b"{}",
        b'{"a": NaN}',
        b'{"a": 1e999}',
    ],
    ids=lambda content: repr(content[:12]),
)
def test_a_config_that_is_no_config_is_refused_or_has_no_effect(
    folder: Path, file: str, content: bytes
) -> None:
    (folder / file).write_bytes(content)
    refusal = tolerates(lambda: read_offer(str(folder)))
    if file in CONFIGS[:1] or content in (b"", b"{", b"[]", b"null", b"\xff", DEEP):
        assert refusal or file not in CONFIGS[:4]


@pytest.mark.parametrize(
    ("file", "changes"),
    [
        ("transformer/config.json", {"num_layers": 1e9}),
        ("transformer/config.json", {"num_layers": 10**9}),
        ("transformer/config.json", {"num_single_layers": -1}),
        ("transformer/config.json", {"num_attention_heads": 2**40}),
        ("transformer/config.json", {"num_attention_heads": True}),
        ("transformer/config.json", {"attention_head_dim": 0}),
        ("transformer/config.json", {"axes_dims_rope": 16}),
        ("transformer/config.json", {"axes_dims_rope": [4, 6]}),
        ("transformer/config.json", {"axes_dims_rope": [4, 6, 8]}),
        ("transformer/config.json", {"axes_dims_rope": [5, 5, 6]}),
        ("transformer/config.json", {"in_channels": 16}),
        ("transformer/config.json", {"guidance_embeds": "yes"}),
        ("vae/config.json", {"block_out_channels": 4}),
        ("vae/config.json", {"block_out_channels": []}),
        ("vae/config.json", {"block_out_channels": [8] * 10_000}),
        ("vae/config.json", {"scaling_factor": 0}),
        ("vae/config.json", {"shift_factor": "far"}),
        ("diffuserve.json", {"width": 10**30}),
        ("diffuserve.json", {"max_pixels": -1}),
        ("diffuserve.json", {"name": "x" * 10_000}),
        ("model_index.json", {"_class_name": ["FluxPipeline"]}),
    ],
)
def test_a_value_out_of_bounds_is_refused_before_anything_is_built(
    folder: Path, file: str, changes: dict[str, Any]
) -> None:
    change(folder, file, **changes)
    with pytest.raises(InvalidModel, match=r"flux"):
        read_offer(str(folder))


@pytest.mark.parametrize(
    "changes",
    [
        {"shift": "far"},
        {"shift": 0},
        {"num_train_timesteps": 1e9},
        {"base_image_seq_len": 4096},
        {"max_shift": 20, "max_image_seq_len": 257},
        {"time_shift_type": "cubic"},
        {"use_dynamic_shifting": 1},
    ],
)
def test_a_schedule_out_of_bounds_is_refused(folder: Path, changes: dict[str, Any]) -> None:
    change(folder, "scheduler/scheduler_config.json", **changes)
    with pytest.raises(InvalidModel, match=r"scheduler_config\.json"):
        load_pipeline(str(folder), LoadPlan(CPU))


@pytest.mark.parametrize(
    "preview",
    [
        [],
        "map",
        {"factors": [[1, 2, 3]]},
        {"factors": [[10**30] * 3] * 16, "bias": [0, 0, 0]},
        {"factors": 1},
    ],
)
def test_a_preview_map_out_of_bounds_is_refused(folder: Path, preview: object) -> None:
    change(folder, "diffuserve.json", preview=preview)
    with pytest.raises(InvalidModel, match="preview needs factors"):
        load_pipeline(str(folder), LoadPlan(CPU))


@pytest.mark.parametrize(
    "shard",
    [
        "../../x.safetensors",
        "/etc/x.safetensors",
        "a/b.safetensors",
        "..",
        ".x.safetensors",
        "x\0.safetensors",
        "model.bin",
        "é" * 400 + ".safetensors",
        "",
    ],
)
def test_an_index_names_files_beside_it_alone(folder: Path, shard: str) -> None:
    index = {"weight_map": {"a": shard}}
    (folder / "transformer" / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(InvalidModel, match=r"not a safetensors file beside it"):
        ModelFolder(folder).weights("transformer")


def test_a_file_without_tensors_is_refused(folder: Path) -> None:
    (folder / TRANSFORMER).write_bytes(struct.pack("<Q", 2) + b"{}")
    with pytest.raises(InvalidModel, match="holds no tensors"):
        load_pipeline(str(folder), LoadPlan(CPU))


def test_a_config_of_gigabytes_is_not_read(folder: Path) -> None:
    with (folder / "vae" / "config.json").open("ab") as file:
        file.truncate(1 << 33)  # a sparse file
    with pytest.raises(InvalidModel, match="more than"):
        read_offer(str(folder))


@pytest.fixture(scope="module")
def sound_unet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_unet_checkpoint(tmp_path_factory.mktemp("sound") / "unet")
    (folder / "diffuserve.json").write_text(json.dumps({"name": "unet"}))
    return folder


@FUZZ
@given(file=st.sampled_from(CONFIGS), data=st.data())
def test_no_value_of_a_config_breaks_the_reading_of_a_folder(
    sound: Path, file: str, data: st.DataObject
) -> None:
    check_reading(sound, file, data)


@FUZZ
@given(file=st.sampled_from(UNET_CONFIGS), data=st.data())
def test_no_value_of_a_config_breaks_the_reading_of_a_folder_with_a_unet(
    sound_unet: Path, file: str, data: st.DataObject
) -> None:
    check_reading(sound_unet, file, data)


@pytest.fixture(scope="module")
def sound_flux2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_flux2_checkpoint(tmp_path_factory.mktemp("sound") / "flux2", kind="dev")
    (folder / "diffuserve.json").write_text(json.dumps({"name": "flux2"}))
    return folder


@FUZZ
@given(file=st.sampled_from(FLUX2_CONFIGS), data=st.data())
def test_no_value_of_a_config_breaks_the_reading_of_a_folder_of_flux_2(
    sound_flux2: Path, file: str, data: st.DataObject
) -> None:
    check_reading(sound_flux2, file, data)


@pytest.fixture(scope="module")
def sound_editor(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_qwen_image_checkpoint(tmp_path_factory.mktemp("sound") / "editor", kind="edit-plus")
    (folder / "diffuserve.json").write_text(json.dumps({"name": "editor", "grid_positions": True}))
    return folder


@FUZZ
@given(file=st.sampled_from(EDITOR_CONFIGS), data=st.data())
def test_no_value_of_a_config_breaks_the_reading_of_a_folder_of_qwen_image_edit(
    sound_editor: Path, file: str, data: st.DataObject
) -> None:
    check_reading(sound_editor, file, data)


@pytest.fixture(scope="module")
def sound_wan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_wan_checkpoint(tmp_path_factory.mktemp("sound") / "wan", kind="i2v")
    (folder / "diffuserve.json").write_text(json.dumps({"name": "wan", "vae_dtype": "float32"}))
    return folder


@FUZZ
@given(file=st.sampled_from(WAN_CONFIGS), data=st.data())
def test_no_value_of_a_config_breaks_the_reading_of_a_folder_of_clips(
    sound_wan: Path, file: str, data: st.DataObject
) -> None:
    check_reading(sound_wan, file, data)


def check_reading(sound: Path, file: str, data: st.DataObject) -> None:
    """Change some values of a config, and read the folder."""
    original = (sound / file).read_text("utf-8")
    content = json.loads(original)
    known = [
        *content,
        "width",
        "max_pixels",
        "min_size",
        "longest_sequence_length",
        "guidance_scale",
        "preview",
        "algorithm_type",
        "prediction_type",
        "max_frames",
        "boundary_ratio",
    ]
    for name in data.draw(st.lists(st.sampled_from(known), min_size=1, max_size=3)):
        content[name] = data.draw(values)
    try:
        (sound / file).write_text(json.dumps(content))
        tolerates(lambda: read_offer(str(sound)))
    finally:
        (sound / file).write_text(original)


@FUZZ
@given(
    config=st.fixed_dictionaries(
        {},
        optional={
            "id2label": st.one_of(values, st.just({"0": "a", "1": "b"})),
            "problem_type": values,
            "max_position_embeddings": values,
            "model_type": st.sampled_from(["roberta", "bert"]) | values,
            "pad_token_id": values,
        },
    ),
    labels=values,
)
def test_no_value_breaks_the_config_of_a_text_classifier(
    tmp_path: Path, config: dict[str, Any], labels: object
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "diffuserve.json").write_text(json.dumps({"labels": labels}))
    tolerates(lambda: read_config(ModelFolder(tmp_path)))


@settings(FUZZ, max_examples=15)
@given(file=st.sampled_from(LOADED), data=st.data())
def test_no_value_of_a_config_breaks_the_loading_of_a_folder(
    sound: Path, file: str, data: st.DataObject
) -> None:
    original = (sound / file).read_text("utf-8")
    content = json.loads(original)
    content[data.draw(st.sampled_from(sorted(content)))] = data.draw(values)
    try:
        (sound / file).write_text(json.dumps(content))
        tolerates(lambda: load_pipeline(str(sound), LoadPlan(CPU)))
    finally:
        (sound / file).write_text(original)


@FUZZ
@given(index=st.one_of(values, st.fixed_dictionaries({"weight_map": values})))
def test_no_index_breaks_the_search_for_weights(tmp_path: Path, index: object) -> None:
    folder = tmp_path / "transformer"
    folder.mkdir(exist_ok=True)
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert tolerates(lambda: ModelFolder(tmp_path).weights("transformer"))


tensors = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "BF16", "F16", "F64", "I64", "U8", "BOOL", "F8_E4M3", "F4", "X", 1]),
        "shape": st.one_of(st.lists(numbers, max_size=3), values),
        "data_offsets": st.one_of(st.tuples(st.integers(-1, 64), st.integers(-1, 64)), values),
    }
)
headers = st.one_of(
    values, st.dictionaries(st.sampled_from(["weight", "other", "__metadata__"]), st.one_of(tensors, values))
)


@FUZZ
@given(
    header=headers,
    length=st.none() | st.sampled_from([0, 1, 7, 2**31, 2**63, 2**64 - 1]),
    body=st.binary(max_size=64),
)
def test_no_header_breaks_the_reading_of_weights(
    tmp_path: Path, header: object, length: int | None, body: bytes
) -> None:
    text = json.dumps(header).encode()
    (tmp_path / "part").mkdir(exist_ok=True)
    file = tmp_path / "part" / "model.safetensors"
    file.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + body)
    tolerates(lambda: checkpoint_dtype(ModelFolder(tmp_path).weights("part")))
    module = torch.nn.Linear(2, 4, bias=False, device="meta")
    tolerates(
        lambda: load_weights(
            module,
            ModelFolder(tmp_path).weights("part"),
            {"weight": Placement("weight")},
            LoadPlan(CPU, torch.float32),
        )
    )
