"""The folder in which the agent keeps the files of finished jobs until they are delivered."""

import logging
from functools import cached_property

from diffuserve.agent.private_folder import PrivateFolder
from diffuserve.agent.state.held_job import HeldJob

log = logging.getLogger(__name__)


class ResultFolder:
    """Moves the files of finished jobs out of their engine's folder, which is deleted with the engine.

    While the artifact store is unavailable they may wait here for hours, and engines may die or be unloaded
    meanwhile.
    """

    @cached_property
    def _folder(self) -> PrivateFolder:
        return PrivateFolder()

    def take(self, job: HeldJob) -> None:
        """Move a job's folder here. Both are on the file system of temporary files, so nothing is copied."""
        kept = self._folder.path / job.attempt
        try:
            job.folder.rename(kept)
        except OSError as error:
            log.warning("job %s: its files stay with the engine: %s", job.lease.job_id, error)
        else:
            job.folder = kept

    def delete(self) -> None:
        """Delete the folder and all undelivered files."""
        if "_folder" in vars(self):
            self._folder.delete()
