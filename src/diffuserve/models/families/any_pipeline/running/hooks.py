"""Hooks on a loaded pipeline's models and schedulers, by which runs park and tell their steps."""

import copy
import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from diffuserve.models.families.any_pipeline.running.call import Call
from diffuserve.models.families.any_pipeline.running.run import current_run
from diffuserve.models.families.any_pipeline.running.steps_told import StepsTold

_CODER_METHODS = ("encode", "decode")
UNPARKED = "unparked_"  # before the names of methods: they run a pass on any thread
_MODEL_METHODS = ("forward", "generate")  # prompt enhancers and text encoders write texts by `generate`


def hook_models(components: dict[str, Any]) -> None:
    """Have calls of a pipeline's models park the run that makes them; calls of other threads go through."""
    for name, part in components.items():
        if isinstance(part, nn.Module):
            is_coder = callable(getattr(part, "decode", None))
            for method in _CODER_METHODS if is_coder else _MODEL_METHODS:
                if callable(getattr(part, method, None)):
                    _hook(name, part, method)


def _hook(component: str, module: nn.Module, method: str) -> None:
    function, unparked = getattr(module, method), UNPARKED + method
    signature = inspect.signature(function)
    setattr(module, unparked, function)  # what is offloaded is brought in within it

    @functools.wraps(function)  # pipelines ask what a model takes
    def parked(*args: Any, **kwargs: Any) -> Any:
        run = current_run()
        if run is None:
            return getattr(module, unparked)(*args, **kwargs)
        arguments = _bound(signature, args, kwargs)
        if method in _CODER_METHODS:
            arguments = {name: _in_dtype_of(module, value) for name, value in arguments.items()}
        adapters = run.adapters.get(component, ())
        return run.park(Call(component, module, method, getattr(module, unparked), arguments, adapters))

    setattr(module, method, parked)


def _in_dtype_of(module: nn.Module, value: Any) -> Any:
    """Return an argument in a coder's own precision, which is float32 where half of it overflows."""
    dtype = getattr(module, "dtype", None)
    is_other = isinstance(value, Tensor) and value.is_floating_point() and value.dtype is not dtype
    return value.to(dtype) if is_other and isinstance(dtype, torch.dtype) else value


def _bound(signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    bound = dict(signature.bind(*args, **kwargs).arguments)
    variadic = (p.name for p in signature.parameters.values() if p.kind is p.VAR_KEYWORD)
    for name in variadic:
        bound |= bound.pop(name, {})
    return bound


def own_copy(pipe: Any, steps: StepsTold) -> Any:
    """Return a pipeline for one run: it shares the models, and has its own guidance, schedulers and bar."""
    own = copy.copy(pipe)
    for name, part in pipe.components.items():
        if hasattr(part, "set_timesteps"):
            scheduler = copy.deepcopy(part)
            scheduler.__class__ = _telling(type(part))  # type: ignore[arg-type]
            setattr(own, name, scheduler)
        elif hasattr(part, "set_state"):  # a guider, which keeps the step that it is at
            setattr(own, name, copy.deepcopy(part))
    own.progress_bar = steps.progress_bar
    return own


@functools.cache
def _telling(kind: type[Any]) -> type[Any]:
    """Return a scheduler class whose steps are counted; pipelines copy schedulers, and copies count too."""
    step: Callable[..., Any] = kind.step

    @functools.wraps(step)  # pipelines ask whether it takes a generator
    def told(self: Any, *args: Any, **kwargs: Any) -> Any:
        run = current_run()
        if run is None:
            return step(self, *args, **kwargs)
        return run.step(self, functools.partial(step, self, *args, **kwargs))

    return type(kind.__name__, (kind,), {"step": told})
