"""Random small checkpoints of many diffusers pipelines, made on the spot."""

from support.tiny_pipelines.folders import bare_pipeline, tiny_folder, tiny_pipeline
from support.tiny_pipelines.registry import TINY_PIPELINES, TinyPipeline

__all__ = ["TINY_PIPELINES", "TinyPipeline", "bare_pipeline", "tiny_folder", "tiny_pipeline"]
