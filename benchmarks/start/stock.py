"""A first image from diffusers' own pipeline, with its marks on the way. `cold_start.py` runs it."""

import sys

from benchmarks.start.marks import mark


def main() -> None:
    mark("process")
    import torch
    from diffusers import FluxPipeline

    from benchmarks.shared.default_dtype import engine_dtype

    mark("imports")
    pipeline = FluxPipeline.from_pretrained(
        sys.argv[1], torch_dtype=engine_dtype(), local_files_only=True, trust_remote_code=False
    )
    pipeline.set_progress_bar_config(disable=True)
    mark("weights")
    pipeline(
        sys.argv[2],
        height=int(sys.argv[3]),
        width=int(sys.argv[3]),
        num_inference_steps=int(sys.argv[4]),
        generator=torch.Generator().manual_seed(1),
        max_sequence_length=int(sys.argv[5]),
    )
    mark("first image")


if __name__ == "__main__":
    main()
