"""The abilities of a model: its defaults and limits, as its folder states them."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from diffuserve.domain.bounds import AllPrintable, Count, Flag, Number, Positive, Printable
from diffuserve.domain.requests.control_use import ControlUse
from diffuserve.domain.requests.input_image import InputImage
from diffuserve.domain.requests.params import GenerationParams


@dataclass(frozen=True, kw_only=True)
class ModelAbilities:
    """Defaults and limits of one model; sizes in pixels, the text length in tokens.

    `has_guidance`: `guidance_scale` means something to the model; up to `guided_above` it means none.
    `guidance_passes`: forward passes in a step of a guided request: 2 for classifier-free guidance (Ho &
    Salimans 2022, arXiv:2207.12598), 1 where the scale is an input of the model. `max_pixels` bounds
    width × height of one image.

    `run_by` names the library whose own pipeline draws, "" if the model is run by code of diffuserve's. With
    `shares_passes` requests share forward passes, else each has its own. A model that `resumes` continues
    half-done work from a checkpoint, and others start it anew. `has_previews`: it shows images half-done.

    A clip of `num_frames`, at most `max_frames`, has `(num_frames - 1) / temporal_stride + 1` latent frames,
    and each token of a latent frame covers `pixels_per_token` pixels. It is shown at `fps` frames a second.
    `has_joint_attention`: the prompt's tokens are part of the image's sequence; otherwise the model reads
    them by cross-attention, and they do not count in a step.

    Clips have sound, or the model makes sounds, with `sample_rate` samples a second; 0 for silent clips and
    for images. A model that makes sounds, of `seconds` and at most `max_seconds`, makes nothing else: its
    width and height are 1, and each token covers `pixels_per_token` samples. If `has_lyrics`, it sings.

    `size_multiple` divides both sides of an image. `sampler` is the name of the checkpoint's own sampler, ""
    if it has no name, and `samplers` are those that a request may ask for. `replaced_scheduler` is the class
    of the checkpoint's scheduler where `sampler` stands in for it, else "".

    With `has_prompt_weights`, a request may have its prompts read with weights of words.

    A request has at least `min_input_images` and at most `max_input_images` images. If `has_strength`,
    drawing starts from the image, with the default `strength`, or `mask_strength` if there is a mask
    (`has_mask`; `needs_mask` for models that only fill in). If `has_first_frame`, the image is the first
    frame of the clip; with `encodes_clip` the autoencoder then encodes a clip of the requested length that
    begins with it, not only the image. Otherwise images are references, shrunk to at most
    `max_reference_pixels` each, whose tokens are part of the sequence. With `scales_references` smaller ones
    are enlarged to as many, and an image without a size has that of the last one. The text encoder may read
    each reference too, as at most `reference_text_tokens`. References have at least `min_reference_side`
    pixels a side. With `masks_references` a request with a mask refers to its first image in the size of the
    result, and starts from it with `mask_strength`. `strength_rounds_up`: the steps taken are
    `num_inference_steps * strength` rounded up, not down. If `has_last_frame`, a clip with a first frame
    may have its last one too, or with `needs_last_frame` must. If `has_control_image`, drawing follows such
    an image, with the default `control_scale`; models with `needs_control_image` draw along one only.
    A request has at most `max_image_prompts` image prompts, each of which becomes `image_prompt_tokens`
    beside the prompt's; with `averages_image_prompts` all together do. It has at most `max_adapters`
    adapters. `controlnets` are the names of the ControlNets that are loaded beside the model, the first of
    which a control image goes to, and `control_modes` how many kinds of images each knows; 0 for a single
    one. `control_work` is the work of the largest beside the model's own.

    The images of a request are independent of one another, with seeds that count up. If `has_layers`, they
    are instead the transparent layers of one picture, of one seed, from back to front: the model draws them
    together, and with them the picture that they make up.

    `learned_min_size` to `learned_max_size` are the sides of the images that the model was trained on; 0 if
    unknown. Other sizes are drawn too, with a warning. `example_prompt` is a prompt that it draws well; "" if
    its folder has none. `example_prompts` are that and more of them.
    """

    name: Annotated[Printable, Field(min_length=1)]
    family: str
    width: Positive
    height: Positive
    num_inference_steps: Positive
    max_sequence_length: Positive
    longest_sequence_length: Positive
    guidance_scale: Number = 0.0
    has_guidance: Flag = False
    guidance_passes: Positive = 1
    guided_above: Number = 1.0
    has_negative_prompt: Flag = False
    min_size: Positive = 16
    max_size: Positive = 4096
    max_pixels: Positive = 4 * 1024 * 1024
    max_images: Positive = 16
    num_frames: Positive = 1
    max_frames: Positive = 1
    fps: Positive = 16
    temporal_stride: Positive = 1
    sample_rate: Count = 0
    seconds: Number = 0.0
    max_seconds: Number = 0.0
    has_lyrics: Flag = False
    pixels_per_token: Positive = 256
    has_joint_attention: Flag = True
    size_multiple: Positive = 16
    sampler: str = ""
    samplers: tuple[str, ...] = ()
    replaced_scheduler: Printable = ""
    min_input_images: Count = 0
    max_input_images: Count = 0
    has_mask: Flag = False
    needs_mask: Flag = False
    has_first_frame: Flag = False
    encodes_clip: Flag = False
    has_last_frame: Flag = False
    needs_last_frame: Flag = False
    has_layers: Flag = False
    has_control_image: Flag = False
    controlnets: tuple[str, ...] = ()
    control_modes: tuple[Count, ...] = ()
    control_work: Number = 0.0
    needs_control_image: Flag = False
    control_scale: Number = 1.0
    max_image_prompts: Count = 0
    image_prompt_tokens: Count = 0
    averages_image_prompts: Flag = False
    max_adapters: Count = 0
    has_strength: Flag = False
    has_prompt_weights: Flag = False
    strength: Number = 0.8
    mask_strength: Number = 1.0
    strength_rounds_up: Flag = False
    max_reference_pixels: Count = 0
    scales_references: Flag = False
    reference_text_tokens: Count = 0
    min_reference_side: Count = 0
    masks_references: Flag = False
    learned_min_size: Count = 0
    learned_max_size: Count = 0
    example_prompt: str = ""
    example_prompts: Annotated[tuple[str, ...], AllPrintable, Field(max_length=24)] = ()
    run_by: str = ""
    shares_passes: Flag = True
    resumes: Flag = True
    has_previews: Flag = True

    def steps_taken(self, params: GenerationParams) -> int:
        """Return how many of its steps a request takes with its `strength`."""
        assert params.strength is not None
        asked = params.num_inference_steps or 0
        taken = min(asked * params.strength, asked)
        return asked - int(asked - taken) if self.strength_rounds_up else int(taken)

    def references(self, params: GenerationParams) -> list[InputImage]:
        """Return the images of a request that are references, not what it starts from."""
        if self.has_strength or self.has_first_frame:
            return []
        return [image for image in params.images if isinstance(image, InputImage)]

    def control_uses(self, params: GenerationParams) -> tuple[ControlUse, ...]:
        """Return what a request asks of the model's ControlNets; a control image goes to the first."""
        if params.controls or params.control_image is None or not self.controlnets:
            return tuple(params.controls or ())
        scale = self.control_scale if params.control_scale is None else params.control_scale
        return (ControlUse(self.controlnets[0], params.control_image, scale),)

    @property
    def takes_strength(self) -> bool:
        """True if requests may say how far to go from an image."""
        return self.has_strength or self.masks_references

    def starts_from_image(self, params: GenerationParams) -> bool:
        """Return whether drawing starts from the first image of a request."""
        starts = self.has_strength or (self.masks_references and params.mask is not None)
        return starts and bool(params.images)

    @property
    def is_video(self) -> bool:
        """True if the model generates clips."""
        return self.max_frames > 1

    @property
    def is_audio(self) -> bool:
        """True if the model makes sounds alone."""
        return self.max_seconds > 0

    @property
    def has_sound(self) -> bool:
        """True if the model makes sounds, or clips with sound."""
        return self.sample_rate > 0

    @property
    def has_size(self) -> bool:
        """True if what the model makes has a width and a height."""
        return not self.is_audio

    @property
    def has_duration(self) -> bool:
        """True if the model makes clips or sounds."""
        return self.is_video or self.is_audio
