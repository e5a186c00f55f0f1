"""The fields of a request that any model may have: texts, sizes, steps, lengths and samplers."""

from dataclasses import MISSING, dataclass
from typing import Final

from diffuserve.domain.requests.prompt_syntax import SYNTAXES
from diffuserve.domain.requests.request_bounds import (
    MAX_FPS,
    MAX_GUIDANCE_SCALE,
    MAX_IMAGES,
    MAX_LYRICS_CHARACTERS,
    MAX_PROMPT_CHARACTERS,
    MAX_SECONDS,
    MAX_SEED,
    MAX_SIDE,
    MAX_STEPS,
)
from diffuserve.domain.requests.request_fields import Dialect, Topic, request_field
from diffuserve.domain.requests.samplers import SAMPLERS, SPACED_SAMPLERS, SPACINGS
from diffuserve.domain.sendable import Sendable

JOBS_ALONE: Final = frozenset[Dialect]()
FLAT_ALONE: Final = frozenset({Dialect.FLAT})
CLIPS: Final = frozenset({Dialect.FLAT, Dialect.OPENAI_VIDEOS})


@dataclass(frozen=True, kw_only=True)
class DrawingFields(Sendable):
    """What a request says without images; see `GenerationParams`."""

    prompt: str = request_field(
        MISSING,
        "Description of the image.",
        max_length=MAX_PROMPT_CHARACTERS,
        dialects=JOBS_ALONE,
        label="Prompt",
    )
    negative_prompt: str | None = request_field(
        help="What the images shall not show, if the model has guidance.",
        description="What the image should not show. To some models null and an empty text differ.",
        max_length=MAX_PROMPT_CHARACTERS,
        needs="has_negative_prompt",
        refusal="has no negative prompt; describe the wanted image instead",
        neutral=("",),
        aliases=("negative",),
        label="Negative prompt",
        hint="what it should not show",
    )
    lyrics: str | None = request_field(
        help="What is sung, if the model sings; by default nothing.",
        description="What is sung, in lines; some models read marks of parts between them, as `[verse]`.",
        max_length=MAX_LYRICS_CHARACTERS,
        needs="has_lyrics",
        refusal="does not sing; leave lyrics out",
        neutral=("",),
        dialects=FLAT_ALONE,
        label="Lyrics",
    )
    width: int | None = request_field(
        help="Width in pixels.",
        needs="has_size",
        refusal="makes sounds, which have no width; leave it out",
        ge=1,
        le=MAX_SIDE,
        aliases=("size",),
        dialects=FLAT_ALONE,
        label="Width",
    )
    height: int | None = request_field(
        help="Height in pixels.",
        needs="has_size",
        refusal="makes sounds, which have no height; leave it out",
        ge=1,
        le=MAX_SIDE,
        dialects=FLAT_ALONE,
        label="Height",
    )
    num_inference_steps: int | None = request_field(
        help="Denoising steps, 1 to 100; by default the model's.",
        ge=1,
        le=MAX_STEPS,
        option=("--steps",),
        flat_name="steps",
        aliases=("steps", "num_steps"),
        label="Steps",
    )
    guidance_scale: float | None = request_field(
        help="Guidance scale, 0 to 100, if the model has one; by default the model's.",
        ge=0,
        le=MAX_GUIDANCE_SCALE,
        needs="has_guidance",
        refusal="has no guidance; leave it out or give 0",
        neutral=(0, 1),
        option=("--guidance",),
        aliases=("cfg", "cfg_scale", "guidance"),
        label="Guidance",
        hint="how closely to follow the prompt",
        step=0.1,
    )
    seed: int | None = request_field(
        help="Seed of the first image; others add their number; by default random.",
        description="Chosen at random if left out; retries keep it.",
        ge=0,
        le=MAX_SEED,
        label="Seed",
    )
    num_images: int = request_field(
        1,
        "Images, clips or sounds of each prompt.",
        ge=1,
        le=MAX_IMAGES,
        option=("-n", "--num-images"),
        aliases=("n", "num_outputs", "num_samples", "batch_size", "num_images_per_prompt"),
        dialects=JOBS_ALONE,
        label="Images",
    )
    num_frames: int | None = request_field(
        help="Make a clip of so many frames; by default the model's, where -o names a clip.",
        description="Frames of a clip, in the steps that the model can: see `limits.temporal_stride`.",
        ge=1,
        needs="is_video",
        topic=Topic.CLIP,
        option=("--frames",),
        aliases=("frames", "video_length"),
        dialects=FLAT_ALONE,
        label="Frames",
    )
    seconds: float | None = request_field(
        help="Make a sound so long, or a clip about so long, instead of --frames; by default the model's.",
        description="Length of a sound, or of a clip, instead of `num_frames`: the nearest that the model "
        "can.",
        gt=0,
        le=MAX_SECONDS,
        needs="has_duration",
        refusal="generates single images; leave seconds out",
        topic=Topic.CLIP,
        aliases=("duration", "num_seconds", "audio_seconds", "audio_duration", "audio_end_in_s"),
        dialects=CLIPS,
        label="Seconds",
        step=0.1,
    )
    fps: int | None = request_field(
        help="Frames of a clip shown in a second, 1 to 120; by default the model's.",
        description="Frames a second at which a clip is shown.",
        ge=1,
        le=MAX_FPS,
        needs="is_video",
        topic=Topic.CLIP,
        aliases=("frame_rate", "framerate"),
        dialects=CLIPS,
        label="Frames a second",
    )
    max_sequence_length: int | None = request_field(
        help="Prompt tokens that the model reads; by default as many as in its training.",
        ge=1,
        le=65_536,
        dialects=JOBS_ALONE,
    )
    sampler: str | None = request_field(
        help="How noise is removed, such as euler or dpmpp_2m; an error lists those that the model can use; "
        "by default the model's own.",
        description="One of the model's `limits.samplers`.",
        choices=SAMPLERS,
        needs="has_choice_of_sampler",
        aliases=("scheduler", "sampler_name", "sampler_index"),
        label="Sampler",
    )
    prompt_syntax: str | None = request_field(
        help="Read (words:1.3) in prompts as weights of words: weights; by default text, as it stands.",
        description="With `weights`, `(words:1.3)`, `(words)` and `[words]` in both prompts weigh words as "
        "AUTOMATIC1111 does; otherwise they are text.",
        choices=SYNTAXES,
        needs="has_prompt_weights",
        refusal="reads no weights of words; leave prompt_syntax out",
        neutral=("text",),
        standard="text",
        label="Prompt syntax",
    )
    timestep_spacing: str | None = request_field(
        help="Where in training's timesteps those of the steps stand: adapters that draw in few steps need "
        "trailing; by default as the model has it.",
        description="Where the steps stand in training's timesteps (Lin et al. 2023, table 2). Adapters that "
        "draw in few steps need `trailing`.",
        choices=SPACINGS,
        samplers=SPACED_SAMPLERS,
    )
    eta: float | None = request_field(
        help="Noise that the sampler ddim adds anew in each step, 0 to 1; by default 0, none.",
        description="Noise that the sampler `ddim` adds anew in each step: 0 is none, 1 as much as DDPM's.",
        ge=0,
        le=1,
        samplers=("ddim",),
        neutral=(0,),
        standard=0,
        label="Eta",
        hint="noise added in each step",
        step=0.1,
    )
    output_quality: int | None = request_field(
        help="Quality of JPEG and WebP images, 0 to 100; by default 95.",
        description="Quality of images in the formats `jpeg` and `webp`: less makes smaller files.",
        ge=0,
        le=100,
        needs="has_size",
        refusal="makes sounds, whose files have no such choice; leave output_quality out",
        standard=95,
        dialects=FLAT_ALONE,
        aliases=("output_compression", "jpeg_quality"),
    )
