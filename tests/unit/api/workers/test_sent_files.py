"""Files that come with a completion: where they are decoded."""

import base64
import hashlib
import threading

import pytest

from diffuserve.api.workers import leased_files as leased
from diffuserve.domain.jobs.job import Artifact, JobResult
from diffuserve.domain.workers.worker import Completion

LARGEST_ON_LOOP = leased.MAX_CHARACTERS_ON_LOOP // 4 * 3


@pytest.mark.parametrize(("num_bytes", "on_loop"), [(LARGEST_ON_LOOP, True), (LARGEST_ON_LOOP + 1, False)])
async def test_large_contents_are_decoded_by_a_thread_of_their_own(
    num_bytes: int, on_loop: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []

    def decode(completion: Completion) -> dict[str, bytes]:
        threads.append(threading.current_thread())
        return decode_contents(completion)

    decode_contents = leased.decode_contents
    monkeypatch.setattr(leased, "decode_contents", decode)
    content = bytes(num_bytes)
    assert await leased.contents_of(_completion(content)) == {"0.png": content}
    assert (threads == [threading.current_thread()]) is on_loop


def _completion(content: bytes) -> Completion:
    digest = hashlib.sha256(content).hexdigest()
    artifact = Artifact(
        name="0.png", content_type="image/png", size_bytes=len(content), sha256=digest, width=1, height=1
    )
    return Completion(
        lease_token=1,
        result=JobResult(artifacts=(artifact,)),
        actual_seconds=1.0,
        contents={"0.png": base64.b64encode(content).decode()},
    )
