"""Parts of a clip that can be watched while the rest is still being decoded, and their keys.

A job that was submitted with `live` has its first clip stored in parts as it is decoded, beside its files,
numbered from 0 without gaps. Concatenated they are one fragmented MP4 (H.264): part 0 begins with the header,
and any number of parts from there on can be played. A part is complete as soon as it can be read, and every
frame in it has passed the image filter.

To serve them, read one part after another from `live_key`, with the job's present lease token, while the job
is leased or has succeeded. If the next one raises `ArtifactNotFound`, wait for the message
`{"type": "live", "num_parts": …}` on the job's topic, which may be lost, and look again; all parts are stored
before the job succeeds, so a part that a succeeded job lacks was never made. Another lease token, or another
final status, ends the live view: another attempt begins with a part 0 of its own.

A worker deletes the parts as soon as the filter blurs or blocks a frame, and before it reports a failure.
Those of a job that has ended are deleted `LINGER_SECONDS` later, so that slow readers get the rest; those of
a lost lease are deleted with its other files.
"""

LIVE_TYPE = "video/mp4"
LINGER_SECONDS = 60.0
MAX_PARTS = 10_000


def live_folder(job_id: str, lease_token: int) -> str:
    """Return the folder of an attempt's parts, which holds nothing else."""
    return f"{job_id}/{lease_token}/live"


def live_key(job_id: str, lease_token: int, number: int) -> str:
    """Return the key of a part."""
    return f"{live_folder(job_id, lease_token)}/part-{number:04d}.m4s"
