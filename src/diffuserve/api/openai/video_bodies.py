"""Bodies of OpenAI's video API, as JSON or as the texts of a form, and the jobs that they ask for."""

import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, Field, PlainValidator

from diffuserve.api.openai.request_bodies import NamedImage, check_size, sides_of
from diffuserve.api.openai.tolerant_body import TolerantBody
from diffuserve.api.openai.video_ids import job_id_of
from diffuserve.api.submit.file_formats import FILE_FORMAT, FileFormat
from diffuserve.api.submit.request_bodies import (
    GenerationInput,
    ModelName,
    NewJobBody,
    Prompt,
    WebhookBody,
    WebhookUrl,
    input_values,
    takes_fields,
)
from diffuserve.domain.jobs.job import VIDEO_GENERATE, Job
from diffuserve.domain.jobs.video_ids import video_id_of
from diffuserve.domain.jobs.webhook import VIDEO_EVENTS
from diffuserve.domain.requests.input_image import ImageInput, InputImage
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.domain.requests.request_fields import Dialect

REMIXED_FROM = "remixed_from_video_id"
"""Key of a remix's metadata, which holds the id of its original."""

LAST_FRAME = "last frame"
"""What stands for the last frame of a clip until it is read."""
_NUMBER = re.compile(r"[0-9]{1,6}(\.[0-9]{1,6})?")


def _check_seconds(value: object) -> float:
    """Return a duration, which OpenAI's client sends as text."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    text = str(value) if isinstance(value, str) or is_number else ""
    if not _NUMBER.fullmatch(text) or float(text) <= 0:
        raise ValueError('must be a number of seconds above 0, such as "4"')
    return float(text)


VideoSeconds = Annotated[float, PlainValidator(_check_seconds, json_schema_input_type=str | float)]
VideoSize = Annotated[str, AfterValidator(check_size)]


@takes_fields(Dialect.OPENAI_VIDEOS)
class VideoFields(TolerantBody):
    """Options of a clip. OpenAI's own API has the first four; its client sends others as `extra_body`."""

    prompt: Prompt
    model: ModelName | None = Field(
        default=None, description="The server's default if left out, or else the only one that makes clips."
    )
    seconds: VideoSeconds | None = Field(
        default=None,
        description='A number or its text, such as `"4"`: the nearest length that the model can.',
    )
    size: VideoSize | None = Field(
        default="auto", description="`WIDTHxHEIGHT`, or `auto` for the model's default or the image's size."
    )
    expand_prompt: bool | None = False
    output_format: FileFormat | None = FILE_FORMAT
    webhook_url: WebhookUrl | None = Field(
        default=None,
        description="Gets `video.completed` or `video.failed` when the clip has ended.",
    )
    live: bool | None = Field(
        default=False, description="Let the clip be watched while it is drawn: `GET /v1/jobs/{job_id}/live`."
    )

    def job_on(self, image: str | None) -> NewJobBody:
        """Build the body of the equivalent job, whose first frame is `image` if there is one."""
        width, height = sides_of(self.size)
        said = input_values(self, Dialect.OPENAI_VIDEOS)
        return NewJobBody.model_construct(
            kind=VIDEO_GENERATE,
            model=self.model,
            input=GenerationInput.model_construct(
                prompt=self.prompt, width=width, height=height, image=image, **said
            ),
            output_format=self.output_format,
            expand_prompt=bool(self.expand_prompt),
            live=bool(self.live),
            webhook=self._webhook(),
        )

    def _webhook(self) -> WebhookBody | None:
        if self.webhook_url is None:
            return None
        return WebhookBody.model_construct(url=self.webhook_url, events=list(VIDEO_EVENTS))


class VideoBody(VideoFields):
    """`POST /v1/videos` of the OpenAI API, in JSON or in a form without a file."""

    input_reference: NamedImage | None = Field(default=None, description="First frame of the clip.")

    def job(self) -> NewJobBody:
        """Build the body of the equivalent job."""
        return self.job_on(self.input_reference.name if self.input_reference else None)


class RemixBody(TolerantBody):
    """`POST /v1/videos/{video_id}/remix` of the OpenAI API."""

    prompt: Prompt

    def job(self, original: Job) -> NewJobBody:
        """Build the body of a job that differs from the original in its prompt alone.

        It keeps the seed, and so the noise that the clip is drawn from.
        """
        return _like(original, prompt=self.prompt)


class SourceVideo(TolerantBody):
    """Clip that was generated here."""

    id: Annotated[str, AfterValidator(job_id_of)]


class VideoEditBody(RemixBody):
    """`POST /v1/videos/edits` of the OpenAI API: a remix of the clip that it names, or that comes along."""

    video: SourceVideo | None = Field(
        default=None, description="A clip that was generated here; forms may also have its file."
    )


class ExtensionBody(VideoEditBody):
    """`POST /v1/videos/extensions` of the OpenAI API."""

    seconds: VideoSeconds

    def job(self, original: Job) -> NewJobBody:
        """Build the body of a job that goes on where the original ends, with noise of its own."""
        changed = {"image": LAST_FRAME, "last_image": None, "num_frames": None, "seed": None}
        return _like(original, prompt=self.prompt, seconds=self.seconds, **changed)


def _like(original: Job, **changed: Any) -> NewJobBody:
    """Build the body of a job like another one but for some of its input."""
    params = GenerationParams.from_dict(original.input)
    values: Mapping[str, Any] = vars(params.with_images(_name)) | changed
    return NewJobBody.model_construct(
        kind=original.kind,
        model=original.model,
        input=GenerationInput.model_construct(**values),
        output_format=original.output_format,
        metadata={REMIXED_FROM: video_id_of(original.id)},
        live=original.live,
    )


def _name(_field: str, image: ImageInput) -> str:
    return image.id if isinstance(image, InputImage) else image
