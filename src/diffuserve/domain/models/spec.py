"""The abilities of a model, its defaults, and the size of its requests."""

import math
from dataclasses import dataclass, replace
from typing import Any

from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.models.abilities import ModelAbilities
from diffuserve.domain.models.cost import FIRST_LATENT_FRAME, Workload
from diffuserve.domain.models.limits import check_request, min_strength
from diffuserve.domain.requests.input_image import InputImage, each_image
from diffuserve.domain.requests.params import IMAGE_FIELDS, GenerationParams
from diffuserve.domain.requests.prompt_syntax import WEIGHTS, syntax_warnings
from diffuserve.domain.requests.samplers import evaluations_before, num_evaluations

_ROUNDING = 1e-6  # pixels by which a computed side may be off
_STARTS = ("image", "last_image")
_PROMPTS = "image_prompts"  # all other images are encoded in the size of the result


@dataclass(frozen=True, kw_only=True)
class ModelSpec(ModelAbilities):
    """The capabilities of a model, and the defaults and sizes of its requests."""

    def num_passes(self, params: GenerationParams) -> int:
        """Return the forward passes that a step of this request takes; 1 without guidance."""
        return self.guidance_passes if (params.guidance_scale or 0) > self.guided_above else 1

    def latent_frames(self, params: GenerationParams) -> int:
        """Return the frames of a request's latents; 1 for an image."""
        return -(-((params.num_frames or 1) - 1) // self.temporal_stride) + 1

    @property
    def shortest_clip(self) -> int:
        """The fewest frames of a clip."""
        return 1 + self.temporal_stride

    @property
    def longest_clip(self) -> int:
        """The most frames of a clip."""
        return (self.max_frames - 1) // self.temporal_stride * self.temporal_stride + 1

    def frames_in(self, seconds: float, fps: int | None = None) -> int:
        """Return the number of frames, among those that the model generates, nearest to a duration."""
        num_strides = round((seconds * (fps or self.fps) - 1) / self.temporal_stride)
        return max(num_strides, 0) * self.temporal_stride + 1

    def clip_frames(self, seconds: float, fps: int | None = None) -> int:
        """Return the frames of the clip whose length is nearest. Raise `InvalidParams` for too long ones."""
        rate, longest = fps or self.fps, self.longest_clip
        # The longest clip is the nearest for durations that exceed it by less than half a stride.
        if seconds * rate > longest + self.temporal_stride / 2:
            remedy = (
                f"{self.name} generates at most {longest} frames, {longest / rate:.3g} at {rate} a second"
            )
            raise InvalidParams("seconds", seconds, remedy)
        return min(max(self.frames_in(seconds, fps), self.shortest_clip), longest)

    def image_tokens(self, params: GenerationParams) -> int:
        """Return the tokens of one image, video or sound, of all its latent frames, without its prompt."""
        if self.is_audio:
            return math.ceil((params.seconds or 0) * self.sample_rate / self.pixels_per_token)
        assert params.width is not None
        assert params.height is not None
        return self.latent_frames(params) * -(-params.width * params.height // self.pixels_per_token)

    def reference_tokens(self, params: GenerationParams) -> int:
        """Return the tokens of the reference images in a request's sequence, beside those of its text."""
        sizes = self.reference_sizes(params)
        return sum(-(-width * height // self.pixels_per_token) for width, height in sizes)

    def text_tokens(self, params: GenerationParams) -> int:
        """Return the most tokens that the text encoder reads for a pass: a prompt's and its references'."""
        images = self.reference_text_tokens * len(self.references(params))
        return (params.max_sequence_length or 0) + images + self.prompt_image_tokens(params)

    def prompt_image_tokens(self, params: GenerationParams) -> int:
        """Return the tokens of a request's image prompts, which stand beside those of its prompt."""
        count = len(params.prompt_images)
        return self.image_prompt_tokens * (min(count, 1) if self.averages_image_prompts else count)

    def reference_sizes(self, params: GenerationParams) -> list[tuple[int, int]]:
        """Return the width and height of each reference of a request whose size is filled in."""
        sizes = [self.reference_size(image) for image in self.references(params)]
        if sizes and self.starts_from_image(params):
            sizes[0] = (params.width or self.width, params.height or self.height)
        return sizes

    def reference_size(self, image: InputImage) -> tuple[int, int]:
        """Return the width and height to which a reference is resized."""
        if self.scales_references:
            return image.scaled(self.max_reference_pixels)
        return image.fitted(self.max_reference_pixels, self.size_multiple)

    def num_steps(self, params: GenerationParams) -> int:
        """Return how often the model is called for a request whose defaults are filled in.

        Solvers may call it more than once in a step, and a request with `strength` skips its first steps.
        """
        asked = params.num_inference_steps or 0
        return num_evaluations(params.sampler or self.sampler, asked) - self.first_step(params)

    def first_step(self, params: GenerationParams) -> int:
        """Return the index of the model call with which a request's schedule begins."""
        if params.strength is None:
            return 0
        skipped = (params.num_inference_steps or 0) - self.steps_taken(params)
        return evaluations_before(params.sampler or self.sampler, skipped)

    def workload(self, params: GenerationParams) -> Workload:
        """Return the size of a request whose defaults are filled in."""
        num_passes = self.num_passes(params)
        text, image = self.text_tokens(params), self.image_tokens(params)
        num_frames = params.num_frames or 1
        drawn = params.num_images + 1 if self.has_layers else 1  # layers, and what they make up
        sequence = drawn * image + self.reference_tokens(params) + text * self.has_joint_attention
        work = 1 + self.control_work * len(self.control_uses(params))
        return Workload(
            num_sequences=num_passes if self.has_layers else params.num_images * num_passes,
            sequence_tokens=math.ceil(sequence * work),
            text_tokens=text * num_passes,
            num_pixels=params.num_images * self._decoded_pixels(params, 0, num_frames),
            later_pixels=params.num_images * self._later_pixels(params, 0, num_frames),
            num_inference_steps=self.num_steps(params),
            input_pixels=self._input_pixels(params, image * self.pixels_per_token),
            num_chunks=self._num_chunks(params),
            is_whole=self.has_layers,
            num_adapters=len(params.adapters or ()),
        )

    def latent_bytes(self, params: GenerationParams) -> int:
        """Return the bytes of finished latents, at most: 16 channels of float32 for 8×8 pixels of a frame.

        So it is in most models; others have fewer, or more in two bytes each.
        """
        return params.num_images * self.image_tokens(params) * self.pixels_per_token

    def chunk_workload(self, params: GenerationParams, start: int, stop: int) -> Workload:
        """Return the size of decoding the frames from `start` up to `stop` of a clip, as one piece."""
        return replace(
            self.workload(params),
            num_pixels=self._decoded_pixels(params, start, stop),
            later_pixels=self._later_pixels(params, start, stop),
            num_chunks=1,
        )

    def _num_chunks(self, params: GenerationParams) -> int:
        """Return the number of chunks in which a request is decoded: 1 for images, else its latent frames."""
        latent_frames = self.latent_frames(params)
        return params.num_images * latent_frames if latent_frames > 1 else 1

    def _decoded_pixels(self, params: GenerationParams, start: int, stop: int) -> int:
        """Return the pixels that the decoder computes for some frames: those of their latent frames."""
        first = FIRST_LATENT_FRAME if self.temporal_stride > 1 else 1
        num_first = round(self._frame_pixels(params) * first) if start == 0 else 0
        return num_first + self._later_pixels(params, start, stop)

    def _later_pixels(self, params: GenerationParams, start: int, stop: int) -> int:
        """Return those of the latent frames after a clip's first."""
        return self._frame_pixels(params) * -(-(stop - max(start, 1)) // self.temporal_stride)

    def _frame_pixels(self, params: GenerationParams) -> int:
        return self.image_tokens(params) // self.latent_frames(params) * self.pixels_per_token

    def _input_pixels(self, params: GenerationParams, target: int) -> int:
        """Return the pixels that the VAE encodes; an image to start from is resized to the `target`.

        Pixels of clips are counted as for the decoder, since the encoder does the inverse work.
        """
        beside = sum(name not in (*_STARTS, _PROMPTS) for name, _ in params.input_images)
        return self._start_pixels(params, target) + target * beside

    def _start_pixels(self, params: GenerationParams, target: int) -> int:
        """Return the pixels of what a request starts from: frames of its clip, an image, or references."""
        if self.has_first_frame:
            stop = (params.num_frames or 1) if self.encodes_clip else 1
            last = 0 if params.last_image is None or self.encodes_clip else self._decoded_pixels(params, 0, 1)
            return len(params.images) * self._decoded_pixels(params, 0, stop) + last
        if not self.has_strength:
            return self.reference_tokens(params) * self.pixels_per_token
        return target * len(params.images)

    @property
    def has_choice_of_sampler(self) -> bool:
        """True if requests may ask for one of several samplers."""
        return len(self.samplers) > 1

    @property
    def states_learned_sizes(self) -> bool:
        """True if the model's folder says which sizes it was trained on."""
        return self.learned_max_size > 0

    def size_warnings(self, params: GenerationParams) -> tuple[str, ...]:
        """Return warnings about the sizes of a request and its images; its defaults must be filled in."""
        low, high = self.learned_min_size, self.learned_max_size
        width, height = params.width or 0, params.height or 0
        warnings = [
            f"the {name.replace('_', ' ').removesuffix('s')} of {image.width}x{image.height} is stretched to "
            f"{width}x{height}; "
            "leave out width or height to keep its proportions"
            for name, image in self._stretched(params)
            if not image.fits(width, height, self.size_multiple)
        ]
        if self.states_learned_sizes and not all(low <= side <= high for side in (width, height)):
            warnings.append(
                f"{self.name} has learned images of {low} to {high} pixels a side; at {width}x{height} it "
                f"may draw something else, or nothing. Its own size is {self.width}x{self.height}"
            )
        return tuple(warnings)

    def sampler_warnings(self, params: GenerationParams) -> tuple[str, ...]:
        """Return a warning where the checkpoint's own sampler is wanted, and another one stands in for it."""
        if not self.replaced_scheduler or params.sampler is not None:
            return ()
        return (
            f"{self.name} was published with {self.replaced_scheduler}, which is not supported; "
            f"{self.sampler} draws in its place. Name a sampler to choose: {', '.join(self.samplers)}",
        )

    def syntax_warnings(self, params: GenerationParams) -> tuple[str, ...]:
        """Return warnings about what is read as text in the prompt, and other programs read more in."""
        if params.prompt_syntax == WEIGHTS:
            return ()
        return syntax_warnings(params.prompt, self.has_prompt_weights)

    def _stretched(self, params: GenerationParams) -> list[tuple[str, InputImage]]:
        """Return the images that are brought to the size of the result, with their fields."""
        resized = len(params.images) if self.has_strength or self.has_first_frame else 0
        if self.starts_from_image(params):
            resized = max(resized, 1)
        kept = ("mask", "image", _PROMPTS)  # a mask has its image's proportions
        others = [each for each in params.input_images if each[0] not in kept]
        named = [*(("image", image) for image in params.images[:resized]), *others]
        return [(name, image) for name, image in named if isinstance(image, InputImage)]

    def simple_request(self, prompt: str, **values: Any) -> GenerationParams:
        """Return a request that the model supports; its input images, if the model needs some, are blank."""
        if self.min_input_images:
            values["image"] = (InputImage.blank(self.width, self.height),) * self.min_input_images
        if self.min_input_images and self.has_strength:
            values["strength"] = 1.0
        for name, declared in IMAGE_FIELDS.items():
            if declared.needed_by and getattr(self, declared.needed_by):
                values[name] = InputImage.blank(self.width, self.height, declared.mode)
        return GenerationParams(prompt=prompt, **values)

    def resolve(self, params: GenerationParams, seed: int) -> GenerationParams:
        """Return the parameters with every default filled in, `seed` included.

        Raise `InvalidParams` or `ModelNotCapable` if the model does not support the request.
        """
        width, height = self.size_of(params) if self.has_size else (params.width, params.height)
        num_frames = self._num_frames(params)
        num_steps = params.num_inference_steps or self.num_inference_steps
        resolved = replace(
            params,
            width=width,
            height=height,
            num_frames=num_frames,
            seconds=self._seconds(params),
            fps=params.fps or (self.fps if (num_frames or 1) > 1 else None),
            num_inference_steps=num_steps,
            guidance_scale=self.guidance_scale if params.guidance_scale is None else params.guidance_scale,
            max_sequence_length=params.max_sequence_length or self.max_sequence_length,
            seed=seed if params.seed is None else params.seed,
            strength=self._strength(params, num_steps),
            control_scale=self._control_scale(params),
            image_prompt_scale=_image_prompt_scale(params),
        )
        check_request(self, resolved)
        return resolved

    def _num_frames(self, params: GenerationParams) -> int | None:
        """Return the frames that a request asks for, or the model's own number; none of a sound."""
        if self.is_audio:
            return params.num_frames
        if params.seconds is None or not self.is_video:
            return params.num_frames or self.num_frames
        if params.num_frames is not None:
            raise InvalidParams("seconds", params.seconds, "says the same as num_frames; give one of them")
        return self.clip_frames(params.seconds, params.fps)

    def _seconds(self, params: GenerationParams) -> float | None:
        """Return the length of a sound, as requested or the model's own; that of a clip is in frames."""
        if self.is_audio:
            return params.seconds or self.seconds
        return None if self.is_video else params.seconds

    def size_of(self, params: GenerationParams) -> tuple[int, int]:
        """Return width and height: as requested, or else the supported size nearest to the input image's.

        Of several images the first one counts, or the last one of those that are scaled.
        """
        guiding = (params.control_image, *each_image(params.controls))
        named = [image for image in (*params.images, *guiding) if isinstance(image, InputImage)]
        width, height = params.width, params.height
        if not named or (width and height):
            return width or self.width, height or self.height
        shown = named[-1 if self.scales_references else 0]
        if width:
            return width, self._side(width * shown.height / shown.width)
        if height:
            return self._side(height * shown.width / shown.height), height
        return self._size_like(shown)

    def _size_like(self, image: InputImage) -> tuple[int, int]:
        """Return the size nearest to an image's; a reference counts in the size to which it is resized.

        A clip has about as many pixels as the default, independent of the size of its first frame.
        """
        if self.scales_references:
            return self.nearest_size(*self.reference_size(image))
        default = self.width * self.height
        scale = math.sqrt(default / image.num_pixels) if self.has_first_frame else 1.0
        return self.nearest_size(scale * image.width, scale * image.height)

    def nearest_size(self, width: float, height: float) -> tuple[int, int]:
        """Return the nearest size that the model generates, in proportion and, if possible, not larger."""
        is_shrunk = self.max_reference_pixels and not self.scales_references
        most = min(self.max_pixels, self.max_reference_pixels) if is_shrunk else self.max_pixels
        scale = min(1.0, math.sqrt(most / (width * height)))
        scale = max(scale, self._smallest_side / min(width, height))
        width, height = self._side(scale * width), self._side(scale * height)
        if width * height > self.max_pixels:  # far from square, and enlarged for the shorter side
            longest = self._side(self.max_pixels / min(width, height))
            width, height = min(width, longest), min(height, longest)
        return width, height

    @property
    def _smallest_side(self) -> int:
        return -(-self.min_size // self.size_multiple) * self.size_multiple

    def _side(self, pixels: float) -> int:
        """Return the nearest side that the model generates and that is, if possible, not longer."""
        side = int(pixels + _ROUNDING) // self.size_multiple * self.size_multiple
        return min(max(side, self._smallest_side), self.max_size // self.size_multiple * self.size_multiple)

    def _control_scale(self, params: GenerationParams) -> float | None:
        """Return the requested scale of a control image, or else the default."""
        if params.control_scale is not None or params.control_image is None:
            return params.control_scale
        return self.control_scale

    def _strength(self, params: GenerationParams, num_steps: int) -> float | None:
        """Return the requested strength, or else the default, raised if it would leave no step."""
        if params.strength is not None or not self.starts_from_image(params):
            return params.strength
        return max(self.strength if params.mask is None else self.mask_strength, min_strength(num_steps))


def _image_prompt_scale(params: GenerationParams) -> float | None:
    """Return the requested scale of image prompts, or else the default."""
    return 1.0 if params.image_prompt_scale is None and params.prompt_images else params.image_prompt_scale
