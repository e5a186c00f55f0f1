"""Random small checkpoints of many diffusers pipelines, made on the spot."""

from support.tiny_pipelines.folders import tiny_folder, tiny_pipeline
from support.tiny_pipelines.registry import TINY_PIPELINES, TinyPipeline

__all__ = ["TINY_PIPELINES", "TinyPipeline", "tiny_folder", "tiny_pipeline"]
