"""The parameters of a job with the pixels of its images, which the agent has fetched."""

from collections.abc import Mapping
from pathlib import Path

from diffuserve.domain.requests.image_fields import mode_of
from diffuserve.domain.requests.input_image import ImageInput, InputImage
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.media.input_image import read_image
from diffuserve.protocol.messages import AddJob


def job_params(job: AddJob) -> GenerationParams:
    """Return a job's parameters. Raise `InvalidParams` for bad values, and for a file that is no image.

    Images keep the ids of their files, by which results and messages name them.
    """
    params = GenerationParams.from_dict(job.input)

    def read(field: str, image: ImageInput) -> InputImage:
        assert isinstance(image, InputImage)
        return _with_pixels(field, image, job.files)

    return params.with_images(read)


def _with_pixels(field: str, image: InputImage, files: Mapping[str, str]) -> InputImage:
    try:
        with Path(files[image.id]).open("rb") as file:
            read = read_image(field, file, mode_of(field), name=image.id)
    except (KeyError, FileNotFoundError) as error:  # clients must not see the agent's folder
        raise RuntimeError(f"{field}: the file of {image.id} is not here") from error
    return InputImage(image.id, read.width, read.height, read.mode, read.pixels)
