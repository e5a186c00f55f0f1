"""What diffusers runs draws the same where weights wait on the host, and are brought in for each pass."""

from pathlib import Path

import pytest

from diffuserve.domain.errors import InvalidModel
from diffuserve.domain.models.offload import Offload
from diffuserve.models.any_pipeline.proven import OFFLOAD
from support.any_runs import drawn, load_tiny, request_of
from support.tiny_pipelines import TINY_PIPELINES

pytestmark = pytest.mark.filterwarnings("ignore")  # diffusers' own
MODES = [mode for mode in Offload if mode is not Offload.NONE]
NAMES = [name for name, tiny in TINY_PIPELINES.items() if tiny.class_name in OFFLOAD]


def test_every_class_that_offloads_is_tried_here() -> None:
    assert {TINY_PIPELINES[name].class_name for name in NAMES} == OFFLOAD


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "sd3" else pytest.mark.slow) for name in NAMES]
)
def test_it_draws_the_same_to_the_bit(tmp_path: Path, name: str) -> None:
    whole = load_tiny(name, tmp_path)
    params = request_of(TINY_PIPELINES[name], whole)
    expected = drawn(whole, params)
    for mode in MODES:
        pipeline = load_tiny(name, tmp_path, offload=mode)
        told = pipeline.describe()
        assert told["offload"] == mode.value
        assert pipeline.residency.host_bytes > 0 or mode is Offload.TEXT  # an encoder may have one layer
        assert drawn(pipeline, params) == expected
        assert drawn(pipeline, params) == expected


def test_other_classes_refuse_it_by_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidModel, match="StableDiffusion3InpaintPipeline"):
        load_tiny("sd3-inpaint", tmp_path, offload=Offload.TEXT)
