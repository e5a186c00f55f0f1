"""The parts of a Wan folder, which must fit one another. Importing this file loads no torch."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field, with_config

from diffuserve.domain.errors import InvalidModel
from diffuserve.domain.models.config import SCHEMA, Width, parse_config
from diffuserve.models.families.wan.config import WanTransformerConfig
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.folders.model_paths import INDEX_FILE
from diffuserve.models.video_autoencoder.config import TEMPORAL_SCALE, VideoVaeConfig
from diffuserve.models.vision.vision_config import ClipVisionConfig, ImageProcessorConfig

EXPERTS = ("transformer", "transformer_2")
"""The transformers of a folder; the second takes over where there is less noise."""


@with_config(SCHEMA)
@dataclass(frozen=True)
class _Index:
    """The values of `model_index.json` that change what a pipeline draws, with diffusers' defaults."""

    boundary_ratio: Annotated[float, Field(gt=0, lt=1)] | None = None
    expand_timesteps: bool = False


@with_config(SCHEMA)
@dataclass(frozen=True)
class _TextEncoder:
    d_model: Width


@dataclass(frozen=True)
class WanCheckpoint:
    """The shapes of a folder's parts, which fit one another.

    `boundary_ratio` is the share of training's timesteps below which the second transformer takes over;
    `None` for a single one. With `expand_timesteps` an image may replace the first frame, at a timestep of
    its own.
    """

    transformer: WanTransformerConfig
    vae: VideoVaeConfig
    boundary_ratio: float | None
    expand_timesteps: bool

    @classmethod
    def read(cls, folder: ModelFolder) -> "WanCheckpoint":
        """Read a folder's configs. Raise `InvalidModel` for parts that do not fit one another."""
        index = parse_config(_Index, folder.index, f"{folder.path}/{INDEX_FILE}")
        checkpoint = cls(
            WanTransformerConfig.read(folder),
            VideoVaeConfig.read(folder),
            index.boundary_ratio,
            index.expand_timesteps,
        )
        checkpoint._check_experts(folder)
        checkpoint._check_channels(folder)
        checkpoint._check_text(folder)
        checkpoint._check_image_encoder(folder)
        return checkpoint

    @property
    def experts(self) -> tuple[str, ...]:
        """Return the folders of the transformers."""
        return EXPERTS[: 1 if self.boundary_ratio is None else 2]

    @property
    def reads_clip(self) -> bool:
        """True if a mask and a clip that begins with an image are further channels of each token."""
        return self.transformer.in_channels > self.vae.z_dim

    @property
    def has_image_encoder(self) -> bool:
        """True if the model attends to CLIP's embeddings of an image."""
        return self.transformer.image_dim is not None

    @property
    def reads_last_frame(self) -> bool:
        """True if the clip that the model reads may end with an image."""
        return self.reads_clip and (not self.has_image_encoder or self.needs_last_frame)

    @property
    def needs_last_frame(self) -> bool:
        """True if the model attends to CLIP's embeddings of two images."""
        return self.transformer.pos_embed_seq_len is not None

    @property
    def components(self) -> tuple[str, ...]:
        """Return the folders that hold weights."""
        return (*self.experts, "vae", *self.encoders)

    @property
    def encoders(self) -> tuple[str, ...]:
        """Return the folders of the encoders of prompts and first frames."""
        return ("text_encoder", "image_encoder") if self.has_image_encoder else ("text_encoder",)

    @property
    def patch_sides(self) -> tuple[int, int]:
        """Return the pixels of a token's height and width."""
        _, rows, columns = self.transformer.patch_size
        return (rows * self.vae.scale, columns * self.vae.scale)

    def _check_experts(self, folder: ModelFolder) -> None:
        if self.boundary_ratio is None:
            return
        if WanTransformerConfig.read(folder, EXPERTS[1]) != self.transformer:
            raise InvalidModel(
                f"{folder.path}: transformer and transformer_2 must have equal shapes, but their config.json "
                "differ"
            )

    def _check_channels(self, folder: ModelFolder) -> None:
        latent = self.vae.z_dim
        with_clip = 2 * latent + TEMPORAL_SCALE
        allowed = (latent,) if self.expand_timesteps else (latent, with_clip)
        config = self.transformer
        if config.in_channels not in allowed or config.num_outputs != latent:
            raise InvalidModel(
                f"{folder.path}: the transformer's in_channels={config.in_channels} and out_channels="
                f"{config.num_outputs} must be {' or '.join(map(str, allowed))} and {latent}, as the VAE's "
                f"z_dim={latent}"
            )
        if folder.pipeline_class == "WanImageToVideoPipeline" and not (
            self.reads_clip or self.expand_timesteps
        ):
            raise InvalidModel(
                f"{folder.path}: {INDEX_FILE} names WanImageToVideoPipeline, but the transformer's "
                f"in_channels={config.in_channels} leave no room for an image; they must be {with_clip}"
            )

    def _check_text(self, folder: ModelFolder) -> None:
        width = parse_config(_TextEncoder, *folder.config("text_encoder")).d_model
        if width != self.transformer.text_dim:
            raise InvalidModel(
                f"{folder.path}: the transformer's text_dim={self.transformer.text_dim} must be the text "
                f"encoder's d_model={width}"
            )

    def _check_image_encoder(self, folder: ModelFolder) -> None:
        if not self.has_image_encoder:
            if self.needs_last_frame:
                raise InvalidModel(
                    f"{folder.path}: the transformer's pos_embed_seq_len means that it attends to two "
                    "images, but it has no image_dim"
                )
            return
        if not self.reads_clip:
            raise InvalidModel(
                f"{folder.path}: the transformer's image_dim={self.transformer.image_dim} means that it "
                f"reads an image, but its in_channels={self.transformer.in_channels} leave no room for one"
            )
        encoder, crop = (
            ClipVisionConfig.read(folder, "image_encoder"),
            ImageProcessorConfig.read(folder).crop_size,
        )
        positions = self.transformer.pos_embed_seq_len
        if positions not in (None, 2 * encoder.num_tokens):
            raise InvalidModel(
                f"{folder.path}: the transformer's pos_embed_seq_len={positions} must be "
                f"{2 * encoder.num_tokens}, the image encoder's tokens of two images"
            )
        if encoder.hidden_size != self.transformer.image_dim:
            raise InvalidModel(
                f"{folder.path}: the transformer's image_dim={self.transformer.image_dim} must be the image "
                f"encoder's hidden_size={encoder.hidden_size}"
            )
        if (crop.height, crop.width) != (encoder.image_size, encoder.image_size):
            raise InvalidModel(
                f"{folder.path}: the image processor's crop_size={crop.height}x{crop.width} must be the "
                f"image encoder's image_size={encoder.image_size}"
            )
