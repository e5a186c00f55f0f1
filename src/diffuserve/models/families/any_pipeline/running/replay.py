"""Half-done runs, gone on with by replay: a run begins anew, and its steps up to the kept one cost nothing.

What a loop carries from step to step is what `scheduler.step` returned, what that left in the scheduler, and
the state of the generator, in classes for which a test has shown it. So the new run does all that the first
one did, but its denoisers' calls are answered with zeros. After as many steps of its schedulers the kept
tensors take the places of those that it has; all else, such as counters, is as the first run had it.
"""

from collections.abc import Callable, Hashable, Mapping
from typing import Any, Final

import torch
from cachetools import LRUCache
from torch import Tensor

from diffuserve.domain.errors import CheckpointUnusable
from diffuserve.models.families.any_pipeline.running.call import Call
from diffuserve.models.families.any_pipeline.running.nested import changed, leaves
from diffuserve.models.pipelines.run_progress import RunProgress

_MAX_REPLIES: Final = 256
_CONFIG: Final = "_internal_dict"  # of every scheduler, and never changed by a step


class Replies:
    """What denoisers returned, by what they were called with: forms, shapes and dtypes, but no numbers.

    Runs use it in turn. The form of a reply is not in a checkpoint, since that comes from elsewhere; so the
    first replay in a process does one pass for each form of call that it has not seen.
    """

    def __init__(self) -> None:
        self._replies: LRUCache[Hashable, Any] = LRUCache(_MAX_REPLIES)

    def form(self, call: Call) -> Hashable:
        return (id(call.module), call.method, _form(call.arguments))

    def learn(self, form: Hashable, reply: Any) -> None:
        """Note the form of a reply: each of its tensors becomes a single zero that is repeated."""
        if form not in self._replies:
            self._replies[form] = changed(reply, lambda tensor: tensor.new_zeros(()).expand(tensor.shape))

    def zeros(self, form: Hashable) -> Any:
        """Return zeros in the form of a reply, `None` if it is unknown."""
        reply = self._replies.get(form)
        return None if reply is None else changed(reply, _written_out)


class _Stepped:
    """A scheduler of a run, what its last step returned, and how many steps it took."""

    def __init__(self, scheduler: Any) -> None:
        self.scheduler, self.result, self.count = scheduler, None, 0
        self._settled = list(leaves(_state(scheduler)))  # as it is before its first step

    def kept(self) -> tuple[Tensor, ...]:
        """Return what goes on to the next step: the result, and what steps have left in the scheduler."""
        return (*leaves(self.result), *filter(self._is_left, leaves(_state(self.scheduler))))

    def put(self, kept: tuple[Tensor, ...]) -> None:
        """Put kept tensors in the places of those that are there. Raise `CheckpointUnusable` if none fit."""
        found = self.kept()
        if len(found) != len(kept):
            raise CheckpointUnusable(
                f"the checkpoint has {len(kept)} tensors of a step instead of {len(found)}"
            )
        waiting = iter(kept)
        self.result = changed(self.result, lambda tensor: _fitting(next(waiting), tensor))
        state = changed(
            _state(self.scheduler),
            lambda tensor: _fitting(next(waiting), tensor) if self._is_left(tensor) else tensor,
        )
        vars(self.scheduler).update(state)

    def _is_left(self, tensor: Tensor) -> bool:
        return not any(tensor is settled for settled in self._settled)


class Replay:
    """Keeps what a run goes on from and, where there is progress to begin with, leads the run to it.

    It is used by the run's thread, and while the run is parked by the thread that leads it.
    """

    def __init__(self, generator: torch.Generator, replies: Replies, begins_at: RunProgress) -> None:
        self._generator, self.replies = generator, replies
        self._begins_at = begins_at if begins_at.steps else None
        self._stepped: list[_Stepped] = []
        self._state = generator.get_state()

    @property
    def is_under_way(self) -> bool:
        """True until the kept step is reached."""
        return self._begins_at is not None

    def step(self, scheduler: Any, take: Callable[[], Any]) -> Any:
        """Take a step of a scheduler, and return its result, or the kept one in its place."""
        stepped = self._of(scheduler)
        stepped.result = take()
        stepped.count += 1
        if self._begins_at is not None:
            self._replay(stepped, self._begins_at)
        self._state = self._generator.get_state()
        return stepped.result

    def progress(self) -> RunProgress:
        """Return what a new run goes on from."""
        if self._begins_at is not None:
            return self._begins_at
        if not self._stepped:
            return RunProgress()
        return RunProgress(
            steps=tuple(stepped.count for stepped in self._stepped),
            kept=tuple(tuple(map(_copied, stepped.kept())) for stepped in self._stepped),
            generator=self._state,
        )

    def check_over(self) -> None:
        """Raise `CheckpointUnusable` if the run has ended before the kept step."""
        if self._begins_at is not None:
            raise CheckpointUnusable(
                f"the checkpoint is after {self._begins_at.steps} steps, which this run has not"
            )

    @property
    def held_bytes(self) -> int:
        return sum(tensor.nbytes for stepped in self._stepped for tensor in stepped.kept())

    def _of(self, scheduler: Any) -> _Stepped:
        found = next((stepped for stepped in self._stepped if stepped.scheduler is scheduler), None)
        if found is None:
            found = _Stepped(scheduler)
            self._stepped.append(found)
        return found

    def _replay(self, stepped: _Stepped, progress: RunProgress) -> None:
        index = self._stepped.index(stepped)
        if index >= len(progress.steps) or stepped.count > progress.steps[index]:
            raise CheckpointUnusable("the checkpoint's schedulers stepped in another order than this run's")
        if stepped.count == progress.steps[index]:
            stepped.put(progress.kept[index])
        if tuple(each.count for each in self._stepped) == progress.steps:
            if progress.generator is not None:
                self._generator.set_state(progress.generator)
            self._begins_at = None


def _state(scheduler: Any) -> dict[str, Any]:
    return {name: value for name, value in sorted(vars(scheduler).items()) if name != _CONFIG}


def _fitting(kept: Tensor, found: Tensor) -> Tensor:
    """Return a kept tensor in the place of another one, which must be of its shape and dtype."""
    if (kept.shape, kept.dtype) != (found.shape, found.dtype):
        raise CheckpointUnusable(
            f"the checkpoint has {kept.dtype} {tuple(kept.shape)}, not {found.dtype} {tuple(found.shape)}"
        )
    return kept.to(found.device, copy=True)


def _written_out(tensor: Tensor) -> Tensor:
    return tensor.clone(memory_format=torch.contiguous_format)


def _copied(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True)


def _form(value: Any) -> Hashable:
    """Return what the form of a reply depends on."""
    if isinstance(value, Tensor):
        return (tuple(value.shape), value.dtype)
    if isinstance(value, Mapping):
        return tuple((name, _form(item)) for name, item in value.items())
    if isinstance(value, tuple | list):
        return tuple(map(_form, value))
    return value if isinstance(value, bool | int | str | None) else str(type(value))
