"""SigLIP's image encoder equals the one of transformers."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from transformers import SiglipImageProcessorPil, SiglipVisionConfig, SiglipVisionModel

from diffuserve.media.input_image import input_image
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.vision import vision_config
from diffuserve.models.vision.siglip import SiglipImageEncoder
from diffuserve.models.weights.load_plan import LoadPlan

SHAPE = {
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "image_size": 28,
    "patch_size": 7,
}


def test_pixels_and_states_equal_those_of_transformers(tmp_path: Path) -> None:
    torch.manual_seed(5)
    model = SiglipVisionModel(SiglipVisionConfig(**SHAPE)).eval()
    model.save_pretrained(tmp_path / "image_encoder")
    processor = SiglipImageProcessorPil(size={"height": 28, "width": 28})
    processor.save_pretrained(tmp_path / "feature_extractor")
    folder = ModelFolder(tmp_path)
    encoder = SiglipImageEncoder(
        vision_config.SiglipVisionConfig.read(folder, "image_encoder"),
        vision_config.SiglipProcessorConfig.read(folder),
        folder.weights("image_encoder"),
        LoadPlan(torch.device("cpu"), torch.float32),
    )
    levels = np.random.default_rng(3).integers(0, 256, (50, 81, 3), dtype=np.uint8)
    image = Image.fromarray(levels)
    with torch.inference_mode():
        theirs = model(**processor(image, return_tensors="pt")).last_hidden_state[0]
        ours = encoder.encode(input_image(image))
    assert ours.shape == (16, 24)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)
