"""Clips that go on where another clip ends: they begin with its last frame."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from diffuserve.api.files.intake import FileIntake, Received
from diffuserve.api.files.job_files import content_of
from diffuserve.api.openai.videos import file_of
from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.jobs.job import Artifact, Job
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.media.last_frame import last_frame

_FIELD = "video"


@dataclass(frozen=True)
class Extensions:
    """Reads the last frames of finished clips, a few at a time, tenants in turn."""

    file_intake: FileIntake

    def resolver(self, original: Job) -> Callable[[str, GenerationParams], Awaitable[GenerationParams]]:
        """Return what gives a request the last frame of a clip as its first one.

        Raise `NotFinished` and `ArtifactNotFound` if the clip has no file.
        """
        artifact = file_of(original, "video")

        async def resolve(tenant_id: str, params: GenerationParams) -> GenerationParams:
            frame = await self._last_frame(tenant_id, original, artifact)
            stored = await self.file_intake.add(tenant_id, Received(_FIELD, "last-frame.png", frame))
            return replace(params, image=stored.as_input())

        return resolve

    async def _last_frame(self, tenant_id: str, job: Job, artifact: Artifact) -> bytes:
        content = content_of(job.id, job.lease_token, artifact.name, artifact.sha256)
        async with self.file_intake.turns.turn(tenant_id):
            data = b"".join([chunk async for chunk in self.file_intake.artifacts.read(content.key)])
            try:
                return await asyncio.to_thread(last_frame, data, artifact.content_type)
            except ModuleNotFoundError as error:
                remedy = (
                    "cannot be read here, for want of PyAV (pip install av); extend a clip in gif or webp"
                )
                raise InvalidParams(_FIELD, artifact.name, remedy) from error
            except (ValueError, OSError) as error:
                raise InvalidParams(_FIELD, artifact.name, f"cannot be read: {error}") from error
