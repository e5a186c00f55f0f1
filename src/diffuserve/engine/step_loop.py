"""The threads that may step an engine, one at a time: the caller's, one step or many, or the driver's."""

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field

from diffuserve.domain.errors import DiffuserveError, EngineClosed
from diffuserve.engine.core import EngineCore
from diffuserve.engine.inbox import Inbox
from diffuserve.engine.outputs import GenerationResult, StepOutput, outcome_of
from diffuserve.engine.requests.checkpoint import Checkpoint
from diffuserve.engine.requests.request_state import RequestState

_LOOK_SECONDS = 0.05


class StepLoop:
    """Steps a core with what is in its inbox; `take` makes a checkpoint of a request between two steps."""

    def __init__(
        self, core: EngineCore, inbox: Inbox, take: Callable[[RequestState | None], Checkpoint]
    ) -> None:
        self._core, self._inbox = core, inbox
        self._stepping = threading.Lock()  # held by the thread that calls the core
        self._checkpoint_requests = _CheckpointRequests(
            self._stepping, lambda request_id: take(core.requests.find(request_id))
        )
        self._undelivered: list[StepOutput] = []
        self._starting = threading.Lock()
        self._driver: threading.Thread | None = None

    def step(self) -> list[StepOutput]:
        """Return what was not delivered yet, else the outputs of a step of the calling thread."""
        if self._driver is not None:
            raise RuntimeError("this engine is driven by submit(); it cannot be stepped by hand as well")
        if self._undelivered:
            outputs, self._undelivered = self._undelivered, []
            return outputs
        return self._step()

    def outcomes(
        self, futures: Mapping[str, Future[GenerationResult]]
    ) -> list[GenerationResult | DiffuserveError]:
        """Step until each of these requests has its outcome; abort them if that is interrupted."""
        try:
            self._run_until_done(futures)
        except BaseException:
            for request_id in futures:
                self._inbox.abort(request_id)
            raise
        return [outcome_of(future) for future in futures.values()]

    def checkpoint(self, request_id: str) -> Checkpoint:
        """Return what `take` makes of a request after the step under way, or at once if there is none."""
        return self._checkpoint_requests.ask(request_id, self._inbox.announce)

    def start_driver(self) -> None:
        """Step on a thread of its own from now on."""
        with self._starting:
            if self._driver is None:
                self._driver = threading.Thread(target=self._drive, name="diffuserve-engine", daemon=True)
                self._driver.start()

    def close(self) -> None:
        """Stop the threads; unfinished requests fail with `EngineClosed`."""
        if not self._inbox.close():
            return
        if self._driver is not None:
            self._driver.join()
        with self._stepping:
            self._core.close()
            self._fail_all("the engine was closed")

    def _step(self) -> list[StepOutput]:
        with self._stepping:
            while True:
                if self._inbox.is_closed:
                    raise EngineClosed("the engine is closed")
                messages = self._inbox.take()
                self._checkpoint_requests.respond()
                outputs = self._core.step(messages.arrived, messages.aborted)
                self._inbox.settle(outputs)
                if outputs or not (self._core.goes_on or self._inbox.expects):
                    return outputs
                self._inbox.wait(self._core.seconds_to_wait)

    def _run_until_done(self, requests: Mapping[str, Future[GenerationResult]]) -> None:
        if self._driver is not None:
            for future in requests.values():
                future.exception()  # blocks until it is done
            return
        while not all(future.done() for future in requests.values()):
            self._undelivered += [output for output in self._step() if output.request_id not in requests]

    def _drive(self) -> None:
        try:
            while True:
                if not self._step():
                    self._inbox.wait()
        except EngineClosed:
            return
        except BaseException as error:
            self._fail_all(f"the engine broke down ({type(error).__name__}: {error})")
            raise

    def _fail_all(self, reason: str) -> None:
        self._inbox.close()
        outputs = self._core.fail_all(reason)
        for state in self._inbox.take().arrived:
            error = EngineClosed(f"request {state.request_id}: {reason}")
            outputs.append(state.output(finished=True, error=error))
        self._inbox.settle(outputs)


@dataclass
class _CheckpointRequests:
    """Holds requests for checkpoints from other threads, which are answered between two steps.

    `take` is called under `stepping`, the lock of the stepping thread.
    """

    stepping: threading.Lock
    take: Callable[[str], Checkpoint]
    _asked: list[tuple[str, "Future[Checkpoint]"]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def ask(self, request_id: str, wake: Callable[[], None]) -> Checkpoint:
        """Return a checkpoint: the stepping thread takes it after its step, or this thread if none steps."""
        future: Future[Checkpoint] = Future()
        with self._lock:
            self._asked.append((request_id, future))
        wake()
        while not future.done():
            if self.stepping.acquire(timeout=_LOOK_SECONDS):
                try:
                    self.respond()
                finally:
                    self.stepping.release()
        return future.result()

    def respond(self) -> None:
        """Answer pending requests; the caller holds the lock of the stepping thread."""
        if not self._asked:
            return
        with self._lock:
            asked, self._asked = self._asked, []
        for request_id, future in asked:
            try:
                future.set_result(self.take(request_id))
            except Exception as error:  # raised in the requesting thread; the step goes on
                future.set_exception(error)
