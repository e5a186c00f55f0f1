"""Progress of running jobs, published to the clients that watch them."""

from diffuserve.domain.jobs.job import Progress
from diffuserve.domain.jobs.progress_report import ProgressReport
from diffuserve.events.base import EventBus, job_topic


def publish_progress(bus: EventBus, job_id: str, report: ProgressReport) -> None:
    """Publish a worker's report: the preview in it, or else the progress.

    A preview is judged and encoded first, and comes after the progress of later steps: its own is stale.
    """
    topic = job_topic(job_id)
    if report.preview is not None:
        place = {"index": report.preview_index or 0, "image": report.preview_image or 0}
        bus.publish(topic, {"type": "preview", **place, "b64": report.preview})
        return
    progress = Progress(report.step, report.total)
    bus.publish(
        topic,
        {
            "type": "progress",
            "phase": report.phase,
            "step": report.step,
            "total": report.total,
            "fraction": progress.fraction,
            "frames": report.frames,
            "num_frames": report.num_frames,
        },
    )
