"""The fields of a job by name, for editors and type checkers. A test holds them to the body of the API."""

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from diffuserve.client.local_images import LocalImage
from diffuserve.domain.requests.adapter_use import AdapterUse
from diffuserve.domain.requests.control_use import ControlUse

Image = LocalImage | str
"""An image that is uploaded first, or the id or URL of one."""


class JobFields(TypedDict, total=False):
    """What may be said of a job beside its prompt; a field that is `None` is left out.

    The first ones are fields of a request, which go into the job's `input`.
    """

    negative_prompt: str | None
    lyrics: str | None
    width: int | None
    height: int | None
    num_inference_steps: int | None
    guidance_scale: float | None
    seed: int | None
    num_images: int | None
    num_frames: int | None
    seconds: float | None
    fps: int | None
    max_sequence_length: int | None
    sampler: str | None
    prompt_syntax: str | None
    timestep_spacing: str | None
    eta: float | None
    output_quality: int | None
    image: Image | Sequence[Image] | None
    mask: Image | None
    strength: float | None
    control_image: Image | None
    control_scale: float | None
    controls: Sequence[ControlUse | Mapping[str, Any] | str] | None
    image_prompts: Image | Sequence[Image] | None
    image_prompt_scale: float | None
    adapters: Sequence[AdapterUse | Mapping[str, Any] | str] | None
    last_image: Image | None

    kind: str | None
    model: str | None
    priority: str | None
    expires_in: float | None
    deadline: float | str | None
    best_effort: bool | None
    exact: bool | None
    timeout: float | None
    metadata: Mapping[str, Any] | None
    output_format: str | None
    webhook: Mapping[str, Any] | None
    expand_prompt: bool | None
    num_previews: int | None
    live: bool | None
    retention_seconds: float | None
    store: bool | None
    max_attempts: int | None
    start_timeout_seconds: float | None
    fallback_model: str | None
    worker_hint: str | None
