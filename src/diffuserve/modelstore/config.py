"""The options of a model store, for workers and for the commands that publish models."""

from dataclasses import dataclass
from pathlib import Path

from platformdirs import user_cache_path

from diffuserve.options import option


def _default_cache() -> Path:
    return user_cache_path("diffuserve") / "models"


@dataclass(frozen=True, kw_only=True)
class ModelStoreConfig:
    """The locations of models and adapters that are known by name."""

    model_store: str | None = option(
        None,
        "Bucket of models, which have names there: s3://bucket/prefix, gs://bucket/prefix, file:///folder.",
    )
    model_cache: Path = option(
        default_factory=_default_cache,
        help="Folder on this machine's disk for models of the model store, which its workers share; by "
        "default in the user's cache folder.",
    )
    model_cache_bytes: int | None = option(
        None,
        "Bytes that the folder may hold; the least recently used models are evicted, but none that is in "
        "use; by default no limit.",
        gt=0,
    )
    model_volume: Path | None = option(
        None, "Folder with the layout of a model store, such as a shared volume, that is read in place."
    )
    adapter_store: str | None = option(
        None,
        "Bucket or folder of adapters (LoRA), named as a model store; by default the model store, and with "
        "`diffuserve serve` a folder in its data folder.",
    )
    adapter_cache_bytes: int = option(
        32 * 2**30,
        "Bytes of adapters that are kept in the folder for models; the least recently used ones are removed.",
        gt=0,
    )

    @property
    def adapters_url(self) -> str | None:
        """Return where adapters are; `None` if there is no place for them."""
        return self.adapter_store or self.model_store

    @property
    def adapter_cache(self) -> Path:
        """Return the folder on this machine's disk for adapters, which its workers share."""
        return self.model_cache / "adapters"
