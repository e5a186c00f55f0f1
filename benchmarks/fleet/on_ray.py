"""Ray on loopback: real raylets, kept by a program of Ray's own environment."""

import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.fleet.manager import FLEET, NOTICE_SECONDS
from benchmarks.shared.places import ROOT
from support.environments import environment

RAY = "2.60.0"
_STOP_SECONDS = 20.0
_OWN = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",
    "RAY_health_check_period_ms": "1000",
    "OMP_NUM_THREADS": "1",
}


class RayManager:
    """A cluster of Ray. Announced machines are drained by Ray, and their workers by a call of their actor."""

    def __init__(self, python: Path, nodes: "subprocess.Popen[str]", num_nodes: int) -> None:
        self._python, self._nodes = python, nodes
        self._address = str(self._order("start", count=num_nodes))

    @property
    def command(self) -> Sequence[str]:
        return (str(self._python), "-m", "diffuserve", "fleet", "ray", "--address", self._address)

    @property
    def environment(self) -> Mapping[str, str]:
        return _OWN

    @property
    def more(self) -> Sequence[str]:
        return ()

    def placed(self) -> Mapping[str, str]:
        found: Mapping[str, str] = self._order("placed", fleet=FLEET)
        return found

    def lose(self, node: str) -> None:
        self._order("lose", node=node)

    def announce(self, node: str) -> None:
        self._order("announce", node=node, seconds=NOTICE_SECONDS)

    def _order(self, name: str, **values: Any) -> Any:
        assert self._nodes.stdin is not None
        assert self._nodes.stdout is not None
        self._nodes.stdin.write(json.dumps({"do": name, **values}) + "\n")
        self._nodes.stdin.flush()
        answer = self._nodes.stdout.readline()
        if not answer:
            raise RuntimeError("the nodes of Ray have ended; ray.log has the reason")
        return json.loads(answer)


@contextmanager
def on_ray(folder: Path, num_nodes: int, variables: Mapping[str, str]) -> Iterator[RayManager]:
    """Yield Ray with so many nodes, whose workers see `variables`.

    Raise `pytest.skip.Exception` where Ray cannot be had.
    """
    python = environment("ray-serve", [f"ray[serve]=={RAY}"]) / "bin" / "python"
    paths = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
    own = {**os.environ, **variables, **_OWN, "PYTHONPATH": paths, "RAY_TMPDIR": str(folder)}
    command = [str(python), "-m", "benchmarks.fleet.ray_nodes"]
    with (
        (folder / "ray.log").open("w") as log,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=own, cwd=ROOT
        ) as nodes,
    ):
        try:
            yield RayManager(python, nodes, num_nodes)
        finally:
            assert nodes.stdin is not None
            nodes.stdin.close()
            try:
                nodes.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                nodes.kill()
