"""Tables of what is right."""

from clip_checker import ClipVerdict
from evaluation import held_out, table
from motions import ClipScene, Motion, Thing

RIGHT = ClipVerdict(*(True,) * 8)
WRONG = ClipVerdict(background=True, count=False)


def test_held_out_scenes_are_the_same_every_time_and_never_trained_on() -> None:
    scenes = held_out(30)
    assert scenes == held_out(30)
    assert all(scene.is_held_out for scene in scenes)
    assert sum(scene.neighbor is not None for scene in scenes) == 10


def test_a_table_counts_what_is_right_by_axis_and_by_motion() -> None:
    scenes = [ClipScene(Thing("star", "red"), motion) for motion in (Motion.GROWS, Motion.STAYS)]
    lines = table({"drawn": [RIGHT, WRONG]}, scenes).splitlines()
    assert lines[2] == "| drawn | 50.0 | 100.0 |" + " 50.0 |" * 7
    assert lines[-3] == "| percent right | grows | stays |"
    assert lines[-1] == "| drawn | 100.0 | 0.0 |"
