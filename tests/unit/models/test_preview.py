"""Previews are a linear map of the latents, of the family or of the model's settings file."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from diffuserve.domain.errors import InvalidModel
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.preview import PreviewMap, read_preview_map

IDENTITY = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
DEFAULT = PreviewMap(IDENTITY, [0.0, 0.0, 0.0])
CPU, LATENTS = torch.device("cpu"), torch.zeros(3, 2, 2)


def folder_with(tmp_path: Path, preview: Any) -> ModelFolder:
    (tmp_path / "diffuserve.json").write_text(json.dumps({"preview": preview}))
    return ModelFolder(tmp_path)


def test_a_pixel_stands_for_a_latent_cell() -> None:
    latents = torch.zeros(3, 2, 4)  # channels, rows and columns of cells
    latents[0, 0, 0], latents[1, 1, 3] = 1.0, -1.0
    levels = DEFAULT.draw(latents)
    assert levels.shape == (2, 4, 3)
    assert levels[0, 0].tolist() == [255, 127, 127]
    assert levels[1, 3].tolist() == [127, 0, 127]
    assert levels[0, 1].tolist() == [127, 127, 127]


def test_values_beyond_the_range_are_clipped() -> None:
    assert DEFAULT.draw(torch.full((3, 2, 2), 5.0))[0, 0].tolist() == [255, 255, 255]


def test_without_settings_the_familys_map_is_used(tmp_path: Path) -> None:
    own = read_preview_map(ModelFolder(tmp_path), 3, DEFAULT, CPU)
    assert torch.equal(own.draw(LATENTS), DEFAULT.draw(LATENTS))


def test_a_settings_file_has_a_map_of_its_own(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, {"factors": IDENTITY, "bias": [1.0, 1.0, 1.0]})
    levels = read_preview_map(folder, 3, DEFAULT, CPU).draw(LATENTS)
    assert levels[0, 0].tolist() == [255, 255, 255]


@pytest.mark.parametrize(
    "preview",
    [
        {},
        [],
        {"factors": IDENTITY},
        {"factors": IDENTITY[:2], "bias": [0, 0, 0]},
        {"factors": IDENTITY, "bias": [0, 0]},
        {"factors": [["red", 0, 0]] * 3, "bias": [0, 0, 0]},
    ],
)
def test_a_map_that_does_not_fit_the_latents_is_refused(tmp_path: Path, preview: Any) -> None:
    with pytest.raises(InvalidModel, match="3 rows of 3 numbers"):
        read_preview_map(folder_with(tmp_path, preview), 3, DEFAULT, CPU)
