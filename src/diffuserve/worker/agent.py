"""The agent: claims jobs, keeps their leases, feeds the engine process and delivers what it makes.

One event loop, no torch: whatever the engine does, heartbeats go on. Each loop below does one thing
and survives the control plane's absence; what they share is the jobs that are held.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence
from pathlib import Path

from diffuserve.client.leases import LeaseClient
from diffuserve.domain.errors import DiffuserveError, WorkerNotFound
from diffuserve.domain.job import Phase
from diffuserve.domain.worker import (
    Claim,
    ControlCommands,
    Heartbeat,
    Lease,
    ReleaseCause,
    WorkerState,
)
from diffuserve.worker.admission import NO_ROOM, Memory, ReadMemory, Room, read_memory, room_left
from diffuserve.worker.config import WorkerConfig
from diffuserve.worker.held_jobs import HeldJob
from diffuserve.worker.membership import Membership
from diffuserve.worker.messages import Abort, Add, Done, Failed, Judged, Moved, Previewed
from diffuserve.worker.metrics import WorkerMetrics
from diffuserve.worker.reports import claim_of, condition
from diffuserve.worker.result_reporter import ResultReporter
from diffuserve.worker.run_forever import run_forever
from diffuserve.worker.supervisor import EngineSupervisor, FromJob

log = logging.getLogger(__name__)

_LONG_POLL_SECONDS = 25.0
_REPORT_SECONDS = 0.5
_LAST_WORDS_SECONDS = 0.6
_PAUSE = 0.5
_CANNOT_START = 2
_USUAL_STATES = {WorkerState.READY, WorkerState.OCCUPIED}  # others are told at once
_NOWHERE = Path("/nonexistent")  # of jobs that never reach an engine


class WorkerAgent:
    """One worker, from its start to its end: `run` gives the exit code."""

    def __init__(self, config: WorkerConfig, client: LeaseClient, memory: ReadMemory = read_memory) -> None:
        self.config = config
        self._client = client
        self._read_memory = memory
        self.metrics = WorkerMetrics()
        self.held: dict[str, HeldJob] = {}
        self._deliveries = ResultReporter(client, self.metrics, self._forget)
        self._membership = Membership(config, client, on_refused=lambda: self._end(_CANNOT_START))
        self._engine = EngineSupervisor(
            config,
            on_hello=self._membership.introduce,
            on_job=self._hear_of_job,
            on_change=self._engine_changed,
            is_occupied=lambda: any(job.is_in_engine for job in self.held.values()),
        )
        self._has_room = asyncio.Event()
        self._asking: asyncio.Task[list[Lease]] | None = None
        self._drain_wanted = asyncio.Event()
        self._has_news = asyncio.Event()  # of a state that others should know at once
        self._told_state = WorkerState.INITIALIZING
        self._tasks: list[asyncio.Task[None]] = []
        self._is_over: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def run(self) -> int:
        """Until drained, or until the engine is beyond help."""
        if self.config.metrics_port is not None:
            self.metrics.serve(self.config.metrics_port)
        loops = [
            self._membership.run,
            self._keep_engine,
            self._engine.watch,
            self._claim,
            self._beat,
            self._obey,
        ]
        loops += [self._report, self._drain]
        self._tasks = [asyncio.create_task(run_forever(loop)) for loop in loops]
        try:
            return await self._is_over
        finally:
            await self._engine.stop()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._client.close()

    def drain(self) -> None:
        """Claim no more, finish what fits into `drain_seconds`, hand the rest back, and end."""
        self._drain_wanted.set()

    @property
    def state(self) -> WorkerState:
        if self._engine.is_stalled:
            return WorkerState.STALLED
        if self._drain_wanted.is_set():
            return WorkerState.DRAINING
        if not self._engine.is_ready:
            return WorkerState.INITIALIZING
        return WorkerState.OCCUPIED if self.held else WorkerState.READY

    # The engine

    async def _keep_engine(self) -> None:
        """An engine that was never ready will not be; one that died too often gets last words."""
        code = await self._engine.run()
        if self._is_over.done():
            return
        if not self._engine.was_ever_ready and code >= 0:
            log.error("the engine could not start (exit code %d); see its message above", code)
            self._end(_CANNOT_START)
            return
        last_words = asyncio.create_task(self._deliveries.all_said())
        await asyncio.wait({last_words}, timeout=_LAST_WORDS_SECONDS)
        self._end(1)

    def _engine_changed(self) -> None:
        if self._engine.link is None:
            self.metrics.engine_died()
            self._give_up_all()
        elif self._engine.last_beat is not None:
            self.metrics.beat(self._engine.last_beat)
        if self.state is not self._told_state and {self.state, self._told_state} != _USUAL_STATES:
            self._has_news.set()
        self._look_for_room()

    def _give_up_all(self) -> None:
        """What was inside a dead engine goes back; what had left it is delivered.

        Where it is known what the engine was at when it died, its death counts against that alone.
        """
        if self._asking is not None:
            self._asking.cancel()
        inside = [job for job in self.held.values() if job.is_in_engine]
        suspects = [job for job in inside if job.attempt in self._engine.suspects]
        for job in inside:
            job.is_in_engine = False
            is_bystander = bool(suspects) and job not in suspects
            cause = ReleaseCause.BYSTANDER if is_bystander else ReleaseCause.WORKER_LOST
            self._deliveries.release(job, cause, is_suspect=job in suspects)

    def _hear_of_job(self, message: FromJob) -> None:
        if isinstance(message, Judged):
            self.metrics.judged(message)
            return
        job = self._in_engine(message.attempt)
        if job is None:  # a lease that was lost meanwhile
            if isinstance(message, Done | Failed) and self._engine.link is not None:
                self._engine.link.drop_folder(message.attempt)
            return
        if isinstance(message, Moved):
            job.move(Phase(message.phase), message.step, message.total)
        elif isinstance(message, Previewed):
            self._deliveries.preview(job, message)
        else:
            self._leave_engine(job, message)

    def _in_engine(self, attempt: str) -> HeldJob | None:
        """The job, if this is the attempt that counts."""
        job = self.held.get(attempt.rpartition("-")[0])
        return job if job is not None and job.is_in_engine and job.attempt == attempt else None

    def _leave_engine(self, job: HeldJob, message: Done | Failed) -> None:
        job.is_in_engine = False
        if isinstance(message, Failed):
            self._deliveries.failed(job, message)
        else:
            self.metrics.generated(job.lease.model, job.total, time.monotonic() - job.since)
            self._deliveries.done(job, message)
        self._look_for_room()

    # The control plane

    async def _claim(self) -> None:
        """Ask for as much as there is room for; ask again with the same id until answered."""
        claim: Claim | None = None
        while not self._drain_wanted.is_set():
            worker_id = await self._membership.worker_id()
            await self._has_room.wait()
            room = self._room()
            if room.num_jobs == 0:
                self._has_room.clear()
                continue
            claim = claim or claim_of(room, self._membership.model)
            try:
                leases = await self._ask(worker_id, claim)
            except WorkerNotFound:
                await self._membership.renew(worker_id)
                continue
            if leases is not None:
                claim = None
            for lease in leases or ():
                self._take(lease)

    async def _ask(self, worker_id: str, claim: Claim) -> list[Lease] | None:
        """`None` when the engine died meanwhile: what it held must not come straight back to us."""
        self._asking = asyncio.create_task(self._client.claim(worker_id, claim, _LONG_POLL_SECONDS))
        try:
            await asyncio.wait({self._asking})
        finally:
            self._asking.cancel()
        return None if self._asking.cancelled() else self._asking.result()

    def _take(self, lease: Lease) -> None:
        link = self._engine.link
        if link is None or not self._engine.is_ready or self._drain_wanted.is_set():
            job = HeldJob(lease, folder=_NOWHERE, is_in_engine=False)
            self.held[lease.job_id] = job
            self._deliveries.release(job, ReleaseCause.DRAIN)
            return
        self._drop(lease.job_id)  # an earlier lease on it, of which we had not heard that it is lost
        job = HeldJob(lease, _NOWHERE)
        job.folder = link.job_folder(job.attempt)
        if not any(one.is_in_engine for one in self.held.values()):
            self._engine.got_work()
        self.held[lease.job_id] = job
        link.send(
            Add(
                attempt=job.attempt,
                input=lease.input,
                folder=str(job.folder),
                priority=-lease.band.rank,
                is_alone=lease.is_suspect,
                num_previews=lease.num_previews,
                output_format=lease.output_format,
            )
        )

    async def _beat(self) -> None:
        while True:
            worker_id = await self._membership.worker_id()
            pause = self._membership.heartbeat_seconds
            start = time.monotonic()
            self._has_news.clear()  # what comes up from here on this heartbeat may not tell
            beat = self._heartbeat()
            try:
                orders = await self._client.heartbeat(worker_id, beat, pause)
                self._drop_lost(orders.lost, beat)
                self._follow(orders)
            except WorkerNotFound:
                await self._membership.renew(worker_id)
            await self._rest(max(pause - (time.monotonic() - start), 0.0))

    async def _rest(self, seconds: float) -> None:
        """Until the next heartbeat is due, or there is news that cannot wait for it."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._has_news.wait()

    def _heartbeat(self) -> Heartbeat:
        """Leases are named, and so renewed, only while the engine answers."""
        answers = self._engine.is_ready
        held = tuple(job.to_renew() for job in self.held.values() if answers or not job.is_in_engine)
        beat = self._engine.last_beat
        fits = {self._membership.model: beat.fit} if beat is not None and beat.fit else {}
        self._told_state = self.state
        self.metrics.state(self.state)
        report = condition(
            self.state,
            self._membership.offer,
            self._memory(),
            beat,
            len(self.held),
            self._engine.image_filter,
        )
        return Heartbeat(report=report, held=held, fits=fits)

    async def _obey(self) -> None:
        """ControlCommands that cannot wait for a heartbeat."""
        while True:
            worker_id = await self._membership.worker_id()
            known = [job_id for job_id, job in self.held.items() if job.is_canceling]
            try:
                orders = await self._client.control(
                    worker_id, _LONG_POLL_SECONDS, known, self._drain_wanted.is_set()
                )
            except WorkerNotFound:
                await asyncio.sleep(1.0)  # the heartbeat registers again
                continue
            if orders.lost:
                self._has_news.set()  # the next heartbeat's answer says which leases, by their tokens
            self._follow(orders)
            if not self.held.keys() >= set(orders.cancel):
                await asyncio.sleep(_PAUSE)  # we shall be told again, until those leases have run out

    def _follow(self, orders: ControlCommands) -> None:
        for job_id in orders.cancel:
            job = self.held.get(job_id)
            if job is not None and not job.is_canceling:
                job.is_canceling = True
                self._abort(job)
        if orders.drain:
            self.drain()

    def _drop_lost(self, lost: Sequence[str], beat: Heartbeat) -> None:
        """Those leases that this heartbeat named; a job may have come back while it was under way."""
        tokens = {held.job_id: held.lease_token for held in beat.held}
        for job_id in lost:
            if job_id in self.held and self.held[job_id].lease.lease_token == tokens[job_id]:
                self._drop(job_id)

    def _drop(self, job_id: str) -> None:
        """Somebody else may have the job: stop it, and say nothing more about it."""
        job = self.held.get(job_id)
        if job is not None and job.is_in_engine:
            log.warning("job %s: the lease is lost; its work is dropped", job_id)
            self.metrics.lease_lost()
            self._abort(job)
            self._forget(job)

    def _abort(self, job: HeldJob) -> None:
        if self._engine.link is not None:
            self._engine.link.send(Abort(attempt=job.attempt))

    async def _report(self) -> None:
        """Progress of what takes long enough for somebody to watch."""
        while True:
            await asyncio.sleep(_REPORT_SECONDS)
            now = time.monotonic()
            for job in list(self.held.values()):
                if job.has_news and now - job.since >= _REPORT_SECONDS:
                    self._deliveries.progress(job)

    # Room, life and end

    async def _drain(self) -> None:
        await self._drain_wanted.wait()
        log.info("draining: %d jobs are held", len(self.held))
        self._has_room.set()  # lets the claim loop see that it is over
        if self._membership.is_registered:
            try:
                await self._client.drain(await self._membership.worker_id())
            except DiffuserveError as error:
                log.warning("the control plane was not told: %s", error)
        deadline = time.monotonic() + self.config.drain_seconds
        while self.held and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        for job in list(self.held.values()):
            if job.is_in_engine:
                self._abort(job)
                job.is_in_engine = False
                self._deliveries.release(job, ReleaseCause.DRAIN, patience_seconds=5.0)
        await asyncio.wait({asyncio.create_task(self._deliveries.all_said())}, timeout=10.0)
        self._end(0)

    def _end(self, code: int) -> None:
        if not self._is_over.done():
            self._is_over.set_result(code)

    def _forget(self, job: HeldJob) -> None:
        """Unless the job has come back meanwhile under another lease."""
        if self.held.get(job.lease.job_id) is job:
            del self.held[job.lease.job_id]
        self._look_for_room()

    def _look_for_room(self) -> None:
        if self._room().num_jobs > 0:
            self._has_room.set()
        elif not self._drain_wanted.is_set():
            self._has_room.clear()

    def _room(self) -> Room:
        budget = self._engine.token_budget
        if budget is None or self._engine.is_stalled or self._memory_is_short():
            return NO_ROOM
        tokens = [job.lease.step_tokens for job in self.held.values() if job.is_in_engine]
        return room_left(self.config.max_jobs, budget, tokens, len(self.held) - len(tokens))

    def _memory_is_short(self) -> bool:
        return self._memory().is_short(self.config.memory_fraction)

    def _memory(self) -> Memory:
        """The device's, where it has its own; else this machine's."""
        beat, link = self._engine.last_beat, self._engine.link
        if beat is not None and beat.memory_limit_bytes:
            return Memory(beat.memory_bytes, beat.memory_limit_bytes)
        return self._read_memory(link.pid if link is not None else None)
