"""The origin that files of images state."""

from diffuserve.engine_process.output.image_output import provenance
from diffuserve.version import __version__

PARAMS = {"prompt": "a star", "seed": 7, "num_images": 3, "width": 64}


def test_each_image_has_the_parameters_that_generate_it_alone() -> None:
    assert provenance(PARAMS, 2, "tiny-flux", "ab12") == {
        "prompt": "a star",
        "seed": 9,
        "num_images": 1,
        "width": 64,
        "model": "tiny-flux",
        "model_hash": "ab12",
        "version": __version__,
    }


def test_an_unknown_hash_is_omitted() -> None:
    assert "model_hash" not in provenance(PARAMS, 0, "tiny-flux")


def test_layers_have_the_parameters_of_all_of_them() -> None:
    origin = provenance(PARAMS, None, "layered")
    assert (origin["seed"], origin["num_images"]) == (7, 3)
