"""The models that people ask for first: short names, hub ids, licenses and sizes. It loads no torch.

Sizes are those of the files that are downloaded, by the numbers of parameters and the format that each part
is published in. What could not be checked is `None`, unknown: it is not guessed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from diffuserve.domain.text.nearest import nearest, same_numbers

APACHE: Final = "Apache-2.0"
MIT: Final = "MIT"
_PERMISSIVE = frozenset({APACHE, MIT})
_ITEM_BYTES = 2  # of a number in bf16 or fp16, in which most are published
_FLUX = "FLUX.1 [dev] Non-Commercial License"
_FLUX_2 = "FLUX Non-Commercial License"
_STABILITY = "Stability AI Community License"
_HUNYUAN = "Tencent Hunyuan Community License"
_RAIL, _RAIL_XL = "CreativeML Open RAIL-M", "CreativeML Open RAIL++-M"


@dataclass(frozen=True)
class KnownModel:
    """A model by its first name, under which `also` it is known.

    `gigabytes` are those to download, of 10⁹ bytes. `billions` of parameters are given where some are
    published in float32: the download does not tell there how large the model is in memory. `is_gated` says
    whether its page asks for consent first. `commit` is what the hub id stands for; without one a download
    takes the newest.
    """

    name: str
    hub_id: str
    license: str
    gigabytes: float | None = None
    is_gated: bool | None = None
    commit: str | None = None
    also: tuple[str, ...] = ()
    billions: float | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.also)

    @property
    def is_permissive(self) -> bool:
        """Return whether its license restricts no use, so that nothing has to be accepted."""
        return self.license in _PERMISSIVE

    @property
    def size(self) -> str:
        return "unknown" if self.gigabytes is None else f"about {self.gigabytes:.3g} GB"

    @property
    def num_parameters(self) -> float | None:
        """Return the parameters of all parts; `None` where they are unknown."""
        if self.billions is not None:
            return self.billions * 1e9
        return None if self.gigabytes is None else self.gigabytes * 1e9 / _ITEM_BYTES

    @property
    def consent(self) -> str:
        return {True: "yes", False: "no", None: "unknown"}[self.is_gated]


KNOWN_MODELS: Final = (
    KnownModel(
        "flux-schnell",
        "black-forest-labs/FLUX.1-schnell",
        APACHE,
        33.7,
        None,
        "741f7c3ce8b383c54771c7003378a50191e9efe9",
    ),
    KnownModel(
        "flux-dev",
        "black-forest-labs/FLUX.1-dev",
        _FLUX,
        33.7,
        True,
        "3de623fc3c33e44ffbe2bad470d0f45bccf2eb21",
    ),
    KnownModel("flux-kontext", "black-forest-labs/FLUX.1-Kontext-dev", _FLUX, 33.7, True),
    KnownModel("flux-fill", "black-forest-labs/FLUX.1-Fill-dev", _FLUX, 33.7, True),
    KnownModel("flux-krea", "black-forest-labs/FLUX.1-Krea-dev", _FLUX, 33.7, True),
    KnownModel(
        "flux2-klein", "black-forest-labs/FLUX.2-klein-4B", APACHE, 16.0, None, also=("flux2-klein-4b",)
    ),
    KnownModel(
        "flux2-klein-base",
        "black-forest-labs/FLUX.2-klein-base-4B",
        APACHE,
        16.0,
        None,
        also=("flux2-klein-base-4b",),
    ),
    KnownModel("flux2-klein-9b", "black-forest-labs/FLUX.2-klein-9B", _FLUX_2, 34.7, None),
    KnownModel("flux2-klein-base-9b", "black-forest-labs/FLUX.2-klein-base-9B", _FLUX_2, 34.7, None),
    KnownModel("flux2-dev", "black-forest-labs/FLUX.2-dev", "FLUX [dev] Non-Commercial License", None, True),
    # https://huggingface.co/Tongyi-MAI/Z-Image-Turbo: 6.15 billion in the transformer, which is in float32 in
    # the distilled one alone, and 4.02 in Qwen3 4B.
    KnownModel("z-image-turbo", "Tongyi-MAI/Z-Image-Turbo", APACHE, 32.8, False, billions=10.26),
    KnownModel("z-image", "Tongyi-MAI/Z-Image", APACHE, 20.52, False),
    KnownModel("qwen-image", "Qwen/Qwen-Image", APACHE, 57.7, False),
    KnownModel("qwen-image-2512", "Qwen/Qwen-Image-2512", APACHE, 57.7, False),
    KnownModel("qwen-image-edit", "Qwen/Qwen-Image-Edit", APACHE, 57.7, False),
    KnownModel("qwen-image-edit-2509", "Qwen/Qwen-Image-Edit-2509", APACHE, 57.7, False),
    KnownModel("qwen-image-edit-2511", "Qwen/Qwen-Image-Edit-2511", APACHE, 57.7, False),
    KnownModel("qwen-image-layered", "Qwen/Qwen-Image-Layered", APACHE),
    KnownModel(
        "sdxl",
        "stabilityai/stable-diffusion-xl-base-1.0",
        _RAIL_XL,
        13.9,
        False,
        "462165984030d82259a11f4367a4eed129e94a7b",
        billions=3.47,
    ),
    KnownModel(
        "sdxl-turbo",
        "stabilityai/sdxl-turbo",
        _STABILITY,
        13.9,
        False,
        "71153311d3dbb46851df1931d3ca6e939de83304",
        billions=3.47,
    ),
    KnownModel(
        "sd-1.5",
        "stable-diffusion-v1-5/stable-diffusion-v1-5",
        _RAIL,
        4.3,
        False,
        "451f4fe16113bff5a5d2269ed5ad43b0592e9a14",
        also=("sd15",),
        billions=1.07,
    ),
    KnownModel("sd35-large", "stabilityai/stable-diffusion-3.5-large", _STABILITY, 27.6, True),
    KnownModel("sd35-large-turbo", "stabilityai/stable-diffusion-3.5-large-turbo", _STABILITY, 27.6, True),
    KnownModel("sd35-medium", "stabilityai/stable-diffusion-3.5-medium", _STABILITY, 16.0, True),
    KnownModel("chroma", "lodestones/Chroma1-HD", APACHE, 27.5, False),
    KnownModel("pixart-sigma", "PixArt-alpha/PixArt-Sigma-XL-2-1024-MS", _RAIL_XL, None, False),
    KnownModel("lumina2", "Alpha-VLLM/Lumina-Image-2.0", APACHE, None, False),
    KnownModel("longcat-image", "meituan-longcat/LongCat-Image", APACHE, None, False),
    # https://huggingface.co/Wan-AI: transformers (1.42, 14.29, of 2.1 with images 16.39, 5.00 billion) and
    # autoencoders (0.13, of the 5B 0.70) are in float32. So are UMT5-XXL (5.68) and, with images, CLIP (0.63)
    # of 2.1; UMT5-XXL of 2.2 is in bf16.
    KnownModel(
        "wan-2.1-1.3b",
        "Wan-AI/Wan2.1-T2V-1.3B-Diffusers",
        APACHE,
        28.9,
        False,
        "0fad780a534b6463e45facd96134c9f345acfa5b",
        also=("wan-t2v-1.3b",),
        billions=7.23,
    ),
    KnownModel(
        "wan-2.1-14b",
        "Wan-AI/Wan2.1-T2V-14B-Diffusers",
        APACHE,
        80.4,
        False,
        "38ec498cb3208fb688890f8cc7e94ede2cbd7f68",
        also=("wan-t2v-14b",),
        billions=20.1,
    ),
    KnownModel(
        "wan-2.1-i2v",
        "Wan-AI/Wan2.1-I2V-14B-480P-Diffusers",
        APACHE,
        91.3,
        False,
        "b184e23a8a16b20f108f727c902e769e873ffc73",
        also=("wan-i2v-14b",),
        billions=22.8,
    ),
    KnownModel(
        "wan-2.2-5b",
        "Wan-AI/Wan2.2-TI2V-5B-Diffusers",
        APACHE,
        34.2,
        False,
        "b8fff7315c768468a5333511427288870b2e9635",
        also=("wan-ti2v-5b",),
        billions=11.39,
    ),
    KnownModel(
        "wan-2.2-a14b",
        "Wan-AI/Wan2.2-T2V-A14B-Diffusers",
        APACHE,
        126.2,
        False,
        "5be7df9619b54f4e2667b2755bc6a756675b5cd7",
        also=("wan-t2v",),
        billions=34.39,
    ),
    KnownModel(
        "wan-2.2-i2v",
        "Wan-AI/Wan2.2-I2V-A14B-Diffusers",
        APACHE,
        126.2,
        False,
        "596658fd9ca6b7b71d5057529bbf319ecbc61d74",
        also=("wan-i2v",),
        billions=34.39,
    ),
    KnownModel("ltx", "Lightricks/LTX-Video", "LTX-Video's own license", None, False, also=("ltx-video",)),
    KnownModel("ltx-2", "Lightricks/LTX-2", "LTX-2 Community License", None, None),
    KnownModel("cogvideox-2b", "THUDM/CogVideoX-2b", APACHE, 13.3, False),
    KnownModel("cogvideox", "THUDM/CogVideoX-5b", "CogVideoX License", 21.1, False, also=("cogvideox-5b",)),
    KnownModel(
        "hunyuan-video",
        "hunyuanvideo-community/HunyuanVideo",
        _HUNYUAN,
        42.0,
        False,
    ),
    KnownModel(
        "hunyuan-video-1.5",
        "hunyuanvideo-community/HunyuanVideo-1.5-480p_t2v",
        _HUNYUAN,
    ),
    KnownModel("mochi", "genmo/mochi-1-preview", APACHE, None, False),
    KnownModel("stable-audio", "stabilityai/stable-audio-open-1.0", _STABILITY, None, True),
)
_BY_NAME: Final[Mapping[str, KnownModel]] = {
    name: model for model in KNOWN_MODELS for name in (*model.names, model.hub_id)
}


def known_model(name: str) -> KnownModel | None:
    """Return the model of a short name or hub id, with its `@COMMIT` or without."""
    return _BY_NAME.get(name.partition("@")[0])


def nearest_known(name: str) -> str:
    """Return the end of a message that names the known model most like a name; nothing without one.

    A model of another version is not what was meant.
    """
    found = nearest(name, [known for known in _BY_NAME if same_numbers(name, known)])
    return "" if found is None else f"; did you mean {found!r}?"
