"""A run: one image's call of a pipeline, on a thread of its own, which parks wherever it calls a model.

The engine looks at the parked calls of all runs, makes passes of those that fit together, and lets each run
go on with its part of the result. Threads and not coroutines of one thread, since what torch keeps by thread
(inference mode, autocast, the current stream) then stays with its run.
"""

import threading
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch

from diffuserve.models.families.any_pipeline.running.call import Call
from diffuserve.models.families.any_pipeline.running.own_randomness import OwnRandomness
from diffuserve.models.families.any_pipeline.running.replay import Replay
from diffuserve.models.families.any_pipeline.running.steps_told import StepsTold
from diffuserve.models.layers.adapted.adapters import Uses

_thread = threading.local()
_NONE: Mapping[str, Uses] = MappingProxyType({})


class Ended(BaseException):
    """Unwinds a pipeline whose request has ended; no pipeline catches it."""


class Run:
    """A pipeline's call from its first line to its result. Its own lines run one run at a time, in `turn`.

    `call` is the model's call at which it is parked. Once it has `ended` there is a `result` or an `error`,
    or neither if it was closed. `stepped` is what the last step of its scheduler returned, and `steps` is how
    far its denoising loop has come. Where its class can, `replay` keeps what another run goes on from.
    `adapters` are its request's, by the component that they change.
    """

    def __init__(
        self,
        generate: Callable[[], Any],
        turn: threading.Lock,
        steps: StepsTold,
        replay: Replay | None = None,
        seed: int = 0,
        adapters: Mapping[str, Uses] = _NONE,
    ) -> None:
        self.steps, self.replay, self.adapters = steps, replay, adapters
        self.call: Call | None = None
        self.num_calls = 0
        self.stepped: Any = None
        self._first: Any = None
        self.result: Any = None
        self.error: Exception | None = None
        self.ended = False
        self.warnings: dict[str, None] = {}  # in order, each once
        self._generate: Callable[[], Any] | None = generate
        self._turn = turn
        self._randomness = OwnRandomness(seed)
        self._reply: Any = None
        self._stream: torch.cuda.Stream | None = None
        self._is_closing = False
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, name="diffuserve-run", daemon=True)
        self._thread.start()

    def resume(self, reply: Any = None) -> None:
        """Let the pipeline go on with what its call returned, until it calls a model or ends."""
        assert not self.ended
        with self._turn:
            self._reply, self.call = reply, None
            self._stream = torch.cuda.current_stream() if torch.cuda.is_initialized() else None
            self._randomness.swap()
            self._go.release()
            self._back.acquire()
            self._randomness.swap()
        self._reply = None

    @property
    def is_replaying(self) -> bool:
        """True on its way to the step that an earlier run had reached."""
        return self.replay is not None and self.replay.is_under_way

    @property
    def is_denoising(self) -> bool:
        """True at the passes of its denoising loop."""
        return self.call is not None and (self.call.is_denoising or self.steps.has_begun)

    @property
    def is_decoding(self) -> bool:
        """True at the passes after its denoising loop."""
        return self.call is not None and self.call.is_decoding and self.steps.has_begun

    def close(self) -> None:
        """Unwind the pipeline, so that its `finally` blocks run; do nothing if it has ended."""
        if not self.ended:
            self._is_closing = True
            self.resume()
        self._thread.join()

    def park(self, call: Call) -> Any:
        """Wait at a call for what it returns; called on the run's own thread.

        Passes that an earlier run has done return zeros, once a pass has shown in which form.
        """
        self._check_open()
        self.num_calls += 1
        self.steps.num_passes += call.is_denoising
        replies = self.replay.replies if self.replay is not None and call.is_denoising else None
        form = None if replies is None else replies.form(call)
        if replies is not None and self.is_replaying and (zeros := replies.zeros(form)) is not None:
            return zeros
        self.call = call
        del call  # its arguments are freed as soon as the engine has used them
        self._back.release()
        self._wait()
        self._check_open()
        if replies is not None:
            replies.learn(form, self._reply)
        return self._reply

    def step(self, scheduler: Any, take: Callable[[], Any]) -> Any:
        """Take a step of one of its schedulers; called on the run's own thread."""
        result = take() if self.replay is None else self.replay.step(scheduler, take)
        self.steps.num_scheduled += 1
        self._first = self._first or scheduler
        if scheduler is self._first:  # others step what is heard
            self.stepped = result
        return result

    def _wait(self) -> None:
        self._go.acquire()
        if self._stream is not None:
            torch.cuda.set_stream(self._stream)

    def _check_open(self) -> None:
        if self._is_closing:
            raise Ended

    def _run(self) -> None:
        _thread.run = self
        if torch.get_num_threads() != 1:  # reading it settles torch's own default for this thread
            torch.set_num_threads(1)
        self._wait()
        try:
            with torch.inference_mode():
                self._check_open()
                assert self._generate is not None
                self.result = self._generate()
                if self.replay is not None:
                    self.replay.check_over()
        except Ended:
            pass
        except Exception as error:
            self.error = error
        finally:
            self.ended, self.call = True, None
            self._generate = None  # nothing of the request outlives its end
            self._back.release()


def current_run() -> Run | None:
    """Return the run whose thread this is."""
    run: Run | None = getattr(_thread, "run", None)
    return run
