"""Training that may be stopped at any moment and goes on where it was."""

import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

_SAVE_SECONDS = 120.0
_TELL_SECONDS = 20.0

Loss = Callable[[int, random.Random], tuple[Tensor, dict[str, float]]]
"""Of a step: the loss, and figures to show beside it. All that is random comes from the step's number."""


class Stopped(Exception):
    """Training was told to stop; everything is saved."""


@dataclass
class Course:
    """Settings of a training stage. `rate` multiplies each optimizer's learning rate."""

    name: str
    modules: dict[str, nn.Module]
    optimizers: Sequence[torch.optim.Optimizer]
    num_steps: int
    rate: Callable[[float], float]
    folder: Path
    ema_decay: float = 0.999

    def __post_init__(self) -> None:
        self.step = 0
        self._base_rates = [
            [group["lr"] for group in optimizer.param_groups] for optimizer in self.optimizers
        ]
        self._average = {name: value.clone() for name, value in self._weights()}
        self._is_stopping = False
        if self.path.exists():
            self._restore(load_file(self.path))

    @property
    def path(self) -> Path:
        return self.folder / f"{self.name}.safetensors"

    @property
    def is_done(self) -> bool:
        return self.step >= self.num_steps

    def run(self, loss: Loss) -> None:
        """Run the stage to its end. Raise `Stopped` after SIGTERM or Ctrl-C."""
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGINT, self._stop)
        saved = told = started = time.monotonic()
        first = self.step
        while not self.is_done:
            figures = self._advance(loss)
            now = time.monotonic()
            if now - told > _TELL_SECONDS:
                speed = (self.step - first) / (now - started)
                shown = " ".join(f"{name} {value:.4f}" for name, value in figures.items())
                print(f"{self.name} {self.step}/{self.num_steps} {speed:.2f}/s {shown}", flush=True)
                told = now
            if now - saved > _SAVE_SECONDS or self._is_stopping:
                self.save()
                saved = now
            if self._is_stopping:
                raise Stopped
        self.save()

    def average_of(self, module: str) -> dict[str, Tensor]:
        """Return the averages of a module's weights, by their names in it."""
        prefix = f"{module}."
        return {
            name.removeprefix(prefix): value
            for name, value in self._average.items()
            if name.startswith(prefix)
        }

    def averaged(self) -> None:
        """Put the average of the weights in their place: what a stage hands on."""
        for name, value in self._weights():
            value.data.copy_(self._average[name])

    def save(self) -> None:
        tensors = {f"weight:{name}": value.detach() for name, value in self._weights()}
        tensors |= {f"average:{name}": value for name, value in self._average.items()}
        for number, optimizer in enumerate(self.optimizers):
            for index, state in optimizer.state_dict()["state"].items():
                tensors |= {
                    f"optimizer:{number}:{index}:{name}": torch.as_tensor(v) for name, v in state.items()
                }
        tensors["step"] = torch.tensor(self.step)
        partial = self.path.with_suffix(".partial")
        save_file({name: value.contiguous().clone() for name, value in tensors.items()}, partial)
        os.replace(partial, self.path)

    def _advance(self, loss: Loss) -> dict[str, float]:
        torch.manual_seed(self.step)
        factor = self.rate(self.step / self.num_steps)
        for optimizer, rates in zip(self.optimizers, self._base_rates, strict=True):
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * factor
        value, figures = loss(self.step, random.Random(f"{self.name} {self.step}"))
        value.backward()
        for module in self.modules.values():
            nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.step += 1
        self._follow()
        return {"loss": float(value.detach())} | figures

    @torch.no_grad()
    def _follow(self) -> None:
        decay = min(self.ema_decay, (1 + self.step) / (10 + self.step))
        names, values = zip(*self._weights(), strict=True)
        torch._foreach_lerp_([self._average[name] for name in names], list(values), 1 - decay)

    def _weights(self) -> Iterator[tuple[str, Tensor]]:
        for prefix, module in self.modules.items():
            for name, value in module.named_parameters():
                yield f"{prefix}.{name}", value.data

    def _restore(self, tensors: dict[str, Tensor]) -> None:
        self.step = int(tensors["step"])
        for name, value in self._weights():
            value.copy_(tensors.get(f"weight:{name}", value))
            kept = tensors.get(f"average:{name}", value)
            self._average[name] = kept.to(value.device, copy=True)
        for number, optimizer in enumerate(self.optimizers):
            state: dict[int, dict[str, Tensor]] = {}
            for key, value in tensors.items():
                if key.startswith(f"optimizer:{number}:"):
                    _, _, index, name = key.split(":")
                    state.setdefault(int(index), {})[name] = value.clone()
            groups = optimizer.state_dict()["param_groups"]
            optimizer.load_state_dict({"state": state, "param_groups": groups})
        print(f"{self.name}: goes on at step {self.step} of {self.num_steps}", flush=True)

    def _stop(self, _signal: int, _frame: FrameType | None) -> None:
        self._is_stopping = True


def warm_then_cosine(done: float) -> float:
    """A short rise, then down to nothing."""
    import math

    return min(done / 0.02, 1.0) * 0.5 * (1 + math.cos(math.pi * done))


def warm_then_linear(done: float) -> float:
    """A short rise, then evenly down to nothing."""
    return min(done / 0.01, 1.0) * (1 - done)
