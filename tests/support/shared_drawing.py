"""Requests that ranks and a single process draw together, step by step, and how near their latents are."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from diffuserve.domain.models.description import Description
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.models.folders.folder import ALONE, Companions
from diffuserve.models.layers.adapted.adapters import Adapter, of_prompts
from diffuserve.models.layers.adapted.lora_pair import Components
from diffuserve.models.pipelines.base import DenoiseInput, PackedPipeline, packed
from diffuserve.models.registry import load_pipeline
from diffuserve.models.weights.load_plan import LoadPlan
from diffuserve.parallel.ranks import Ranks

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Drawn:
    """Latents that a rank has drawn, the bytes of its weights, and what it has read of the files.

    `latents` are lists, since tensors do not pass between processes; `weight_bytes` are by the classes of
    components, and `description` is the pipeline's own.
    """

    latents: list[list[float]]
    weight_bytes: dict[str, int]
    read_bytes: int
    description: Description


def draw(
    model: str,
    requests: Sequence[GenerationParams],
    ranks: Ranks | None = None,
    adapters: Mapping[str, Components] | None = None,
    companions: Companions = ALONE,
) -> Drawn:
    """Load a model, and draw all requests together; they may end at different steps.

    `adapters` are those that requests name.
    """
    sizes: list[int] = []
    plan = LoadPlan(CPU, torch.float32, ranks=ranks, on_read=sizes.append, companions=companions)
    pipeline = packed(load_pipeline(model, plan))
    weight_bytes: Counter[str] = Counter()
    for component in pipeline.components():
        weight_bytes[type(component.module).__name__] += num_bytes(component.module)
    placed = {name: pipeline.place_adapter(name, each) for name, each in (adapters or {}).items()}
    latents = [each.flatten().tolist() for each in generate(pipeline, requests, placed)]
    return Drawn(latents, weight_bytes, sum(sizes), pipeline.describe())


@torch.inference_mode()
def generate(
    pipeline: PackedPipeline, requests: Sequence[GenerationParams], adapters: Mapping[str, Adapter]
) -> list[Tensor]:
    """Return the latents of requests after their last steps; one that is done leaves the batch."""
    params = [pipeline.spec.resolve(each, seed=seed) for seed, each in enumerate(requests)]
    uses = [tuple((adapters[use.name], use.weight) for use in each.adapters or ()) for each in params]
    conditioning = pipeline.encode(params, [of_prompts(own) for own in uses])
    latents, guides = [], []
    for request, encoded in zip(params, conditioning, strict=True):
        generators = [torch.Generator().manual_seed(7 + image) for image in range(request.num_images)]
        begun = pipeline.init_latents(request, encoded, generators)
        latents.append(begun.latents)
        guides.append(begun.guides)
    memories: list[tuple[Tensor, ...]] = [()] * len(params)
    for step in range(max(request.num_inference_steps or 0 for request in params)):
        going = [i for i, request in enumerate(params) if step < (request.num_inference_steps or 0)]
        at = {i: pipeline.schedule(params[i]).at(step) for i in going}
        batch = [
            DenoiseInput(
                params[i],
                conditioning[i],
                latents[i],
                at[i].timestep,
                guides=guides[i],
                adapters=uses[i],
                step=step,
                num_steps=params[i].num_inference_steps or 1,
            )
            for i in going
        ]
        for i, prediction in zip(going, pipeline.denoise(batch), strict=True):
            sampler = pipeline.sampler(params[i])
            latents[i], memories[i] = sampler.step(latents[i], prediction, at[i], memories[i], None)
            latents[i] = pipeline.restore(latents[i], batch[going.index(i)], at[i])
    return latents


def num_bytes(module: nn.Module) -> int:
    return sum(parameter.nbytes for parameter in module.parameters())


def psnr(ours: Sequence[float], expected: Sequence[float]) -> float:
    """Return how near latents are, in dB of their range."""
    left, right = torch.tensor(ours).double(), torch.tensor(expected).double()
    error = (left - right).square().mean()
    return float(10 * torch.log10((right.max() - right.min()).square() / error.clamp(min=1e-30)))
