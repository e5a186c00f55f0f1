"""A small pipeline of every family, for tests of what holds for all of them."""

import pytest

from diffuserve.engine.engine import Engine
from diffuserve.models.pipelines.base import Pipeline
from diffuserve.testing.fake_pipeline import FakePipeline

FAMILIES = ("flux", "flux2", "qwen image", "stable diffusion", "wan", "z-image", "any pipeline", "fake")
FAMILIES_LIKE_FLUX = ("flux2", "qwen image", "wan", "z-image")
"""Families whose requests share packed passes, as FLUX's do."""
_FIXTURES = {
    "flux2": "small_flux2",
    "qwen image": "small_qwen_image",
    "stable diffusion": "small_unet",
    "wan": "small_wan",
    "z-image": "small_z_image",
    "any pipeline": "small_any",
}


def pipeline_of(family: str, request: pytest.FixtureRequest) -> Pipeline:
    """Return the pipeline of a family; all but the fake one are shared by the tests of a session."""
    if family == "fake":
        return FakePipeline()
    if family == "flux":
        engine: Engine = request.getfixturevalue("tiny_engine")
        return engine.pipeline
    pipeline: Pipeline = request.getfixturevalue(_FIXTURES[family])
    return pipeline
