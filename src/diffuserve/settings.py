"""The environment's say, read here and nowhere else."""

from pathlib import Path

from platformdirs import user_cache_path
from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    """Defaults of the command line; each is set by `DIFFUSERVE_` and its name in capitals."""

    model_config = SettingsConfigDict(env_prefix="DIFFUSERVE_", frozen=True)

    model: str = Field(default="tiny-flux", description="bundled model, folder or hub id")
    device: str | None = Field(
        default=None, description="cpu or cuda[:n]; by default CUDA where there is one"
    )
    dtype: str | None = Field(
        default=None, description="bfloat16, float16 or float32; by default the checkpoint's"
    )
    cache_dir: Path = Field(
        default_factory=lambda: user_cache_path("diffuserve"), description="where fitted cost models are kept"
    )
