"""The folder of finished jobs' files, which the agent keeps until they are delivered."""

import logging
from functools import cached_property

from diffuserve.agent.private_folder import PrivateFolder
from diffuserve.agent.state.held_job import HeldJob

log = logging.getLogger(__name__)


class ResultFolder:
    """Takes the files of finished jobs out of their engine's folder, which ends with the engine.

    Where the artifact store is away they wait here for hours, and engines may die or make room meanwhile.
    """

    @cached_property
    def _folder(self) -> PrivateFolder:
        return PrivateFolder()

    def take(self, job: HeldJob) -> None:
        """Move a job's folder here. Both are in the folder for temporary files, so that nothing is copied."""
        kept = self._folder.path / job.attempt
        try:
            job.folder.rename(kept)
        except OSError as error:
            log.warning("job %s: its files stay with the engine: %s", job.lease.job_id, error)
        else:
            job.folder = kept

    def delete(self) -> None:
        """Delete the folder, with what was not delivered."""
        if "_folder" in vars(self):
            self._folder.delete()
