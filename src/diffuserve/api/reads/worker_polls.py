"""Looks at the database on behalf of long polls of workers, shared by all that wait in this process."""

from collections.abc import Mapping

from diffuserve.domain.errors import WorkerNotFound
from diffuserve.domain.jobs.job import Band
from diffuserve.domain.workers.worker import ControlCommands, Worker
from diffuserve.jobs.reads.shared_reads import SharedReads
from diffuserve.jobs.store import JobStore


class WorkerPolls:
    """Finds what the bus has lost, with as many queries for many workers that wait as for a few."""

    def __init__(self, store: JobStore, poll_seconds: float) -> None:
        self._store = store
        self._has_work: SharedReads[Band, bool] = SharedReads(store.leases.has_work, poll_seconds / 2)
        self._workers: SharedReads[None, tuple[float, list[Worker]]] = SharedReads(
            self._read_workers, poll_seconds / 2
        )
        self._commands: SharedReads[None, Mapping[str, ControlCommands]] = SharedReads(
            self._read_commands, poll_seconds / 2
        )

    async def workers(self) -> tuple[float, list[Worker]]:
        """Return all workers as they were a moment ago, and the store's time then."""
        return await self._workers.get(None)

    async def has_work(self, worst: Band) -> bool:
        """Return whether a claim may find a job of this band or a better one.

        A claim is a transaction, and most would find none.
        """
        return await self._has_work.get(worst)

    async def commands(self, worker_id: str) -> ControlCommands:
        """Return the worker's pending commands, as `WorkerLeases.control_commands` does."""
        commands = (await self._commands.get(None)).get(worker_id)
        if commands is None:
            raise WorkerNotFound(f"no worker {worker_id}; register again")
        return commands

    async def _read_workers(self, _key: None) -> tuple[float, list[Worker]]:
        return await self._store.operations.workers_at()

    async def _read_commands(self, _key: None) -> Mapping[str, ControlCommands]:
        return await self._store.leases.all_control_commands()
