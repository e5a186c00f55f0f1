"""Workers that start together and get one model from one another: what the bucket sends, how long all take.

    python -m benchmarks peers
    python -m benchmarks peers --quick    # a minute; writes no result

Each worker is the real agent with an engine process that draws nothing; the bucket sends to all together no
faster than --megabytes-per-second. A lying peer says that it has the whole model and sends other bytes.
"""

import argparse
import json
import random
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from urllib.request import Request, urlopen

from benchmarks.control.processes import DIFFUSERVE, Program, api_command, free_port, serving_environment
from benchmarks.shared.places import RESULTS
from benchmarks.shared.report import markdown_table, read_conditions, write_report
from benchmarks.shared.throttled_bucket import BUCKET, ThrottledBucket
from diffuserve.modelstore.bucket import open_models
from diffuserve.modelstore.config import ModelStoreConfig
from diffuserve.modelstore.libtorrent_swarm import LibtorrentSwarm
from diffuserve.modelstore.manifest import Manifest
from diffuserve.modelstore.partial import PartialModel
from diffuserve.modelstore.piece_hashes import PIECE_BYTES
from diffuserve.modelstore.publishing import push
from diffuserve.protocol.config import EngineProcessConfig
from diffuserve.testing.null_engine import NULL_SPEC
from support.stored_models import manifest_of

LIE = "a peer sent a piece that is not as the manifest says"
_PATIENCE_SECONDS = 1_800.0
_LOOK_SECONDS = 0.2


def main() -> None:
    arguments = parse_arguments()
    megabytes, rate = (20, 10.0) if arguments.quick else (arguments.megabytes, arguments.megabytes_per_second)
    fleets = [3] if arguments.quick else arguments.workers
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        rows = list(measured(Path(name), megabytes * 1_000_000, rate * 1e6, fleets))
    text = markdown_table(f"One model of {megabytes} MB from a bucket of {rate:g} MB/s", rows)
    print(text)
    if not arguments.quick:
        conditions = read_conditions(("libtorrent", "obstore"))
        write_report(RESULTS / f"peers_{arguments.label}", {"rows": rows}, text, conditions)


def measured(folder: Path, num_bytes: int, rate: float, fleets: list[int]) -> Iterator[dict[str, str]]:
    """Yield a row for one worker, for each fleet, and for the first fleet beside a lying peer."""
    files = write_model(folder / "files", num_bytes)
    manifest = manifest_of(files, "large")
    push(open_models((folder / "bucket").as_uri()), files, manifest)
    alone = 0.0
    for count, has_liar in ((1, False), *((count, False) for count in fleets), (fleets[0], True)):
        seconds, sent, lies = play(folder, manifest, rate, count, has_liar)
        alone = alone or seconds
        yield {
            "workers": f"{count}{' and a lying peer' if has_liar else ''}",
            "bucket sent, times the model": f"{sent / manifest.num_bytes:.2f}",
            "all ready after s": f"{seconds:.1f}",
            "times one worker": f"{seconds / alone:.2f}",
            "lies found out": str(lies),
        }


def play(folder: Path, manifest: Manifest, rate: float, count: int, has_liar: bool) -> tuple[float, int, int]:
    """Return the seconds until all workers are ready, the bytes that the bucket sent, and the lies found."""
    place = folder / "run"
    place.mkdir()
    bucket, url = ThrottledBucket(folder / "bucket", rate), f"http://127.0.0.1:{(port := free_port())}"
    try:
        with ExitStack() as stack:
            log = place / "api.log"
            command = api_command(port, place / "data", None)
            stack.enter_context(running(Program("api", command, serving_environment(), log)))
            wait_until(lambda: answers(url))
            if has_liar:
                stack.enter_context(lying_peer(place / "liar", manifest, url))
            start = time.monotonic()
            logs = [place / f"{number}.log" for number in range(count)]
            for number, log in enumerate(logs):
                command = worker_command(url, manifest, place / f"cache-{number}", f"127.0.1.{number + 1}")
                stack.enter_context(running(Program(log.stem, command, bucket.environment, log)))
            wait_until(lambda: num_ready(url) == count)
            seconds = time.monotonic() - start
            check_whole(place, manifest, folder / "files", count)
            return seconds, bucket.num_sent, sum(log.read_text().count(LIE) for log in logs)
    finally:
        bucket.shutdown()
        shutil.rmtree(place)


def worker_command(url: str, manifest: Manifest, cache: Path, address: str) -> list[str]:
    stored = ModelStoreConfig(model_store=f"s3://{BUCKET}", model_cache=cache)
    config = EngineProcessConfig(model=manifest.reference, stored=stored, peers=address)
    engine = shlex.join([sys.executable, "-m", "diffuserve.testing.null_engine", "--fetch", config.to_json()])
    return [*DIFFUSERVE, "worker", "--server", url, "--engine-command", engine]


@contextmanager
def running(program: Program) -> Iterator[None]:
    program.start()
    try:
        yield
    finally:
        program.stop()


@contextmanager
def lying_peer(folder: Path, manifest: Manifest, url: str) -> Iterator[None]:
    """Be a worker that reports the whole model, and sends other bytes, within the block."""
    partial, swarm = PartialModel(folder, manifest), LibtorrentSwarm("127.0.2.1")
    swarm.join(manifest, partial.folder, manifest.pieces[:-1])  # of holes: nothing but zeros
    address = {"host": swarm.address.host, "port": swarm.address.port}
    peer = {"model": manifest.hash, "address": address, "is_complete": True}
    report = {"state": "initializing", "peers": [peer]}
    request(url, "/v1/workers", {"models": [{"spec": asdict(NULL_SPEC)}], "report": report})
    try:
        yield
    finally:
        swarm.close()


def num_ready(url: str) -> int:
    workers = request(url, "/v1/workers")["data"]
    return sum(worker["state"] == "ready" for worker in workers)


def answers(url: str) -> bool:
    try:
        request(url, "/v1/workers")
    except OSError:
        return False
    return True


def request(url: str, path: str, body: object = None) -> dict[str, list[dict[str, object]]]:
    content = None if body is None else json.dumps(body).encode()
    asked = Request(url + path, content, {"content-type": "application/json"})  # noqa: S310 (its own server)
    with urlopen(asked) as response:  # noqa: S310
        found: dict[str, list[dict[str, object]]] = json.loads(response.read())
    return found


def check_whole(place: Path, manifest: Manifest, files: Path, count: int) -> None:
    """Compare every copy with the model, byte by byte."""
    for number in range(count):
        for file in manifest.files:
            copy = place / f"cache-{number}" / "models" / manifest.hash / manifest.name / file.path
            with copy.open("rb") as got, (files / file.path).open("rb") as wanted:
                while block := wanted.read(PIECE_BYTES):
                    assert got.read(PIECE_BYTES) == block, copy


def write_model(folder: Path, num_bytes: int) -> Path:
    """Write files of random bytes that have a model's names."""
    source = random.Random(0)
    (folder / "transformer").mkdir(parents=True)
    (folder / "model_index.json").write_text("{}")
    with (folder / "transformer" / "weights.safetensors").open("wb") as file:
        for start in range(0, num_bytes, PIECE_BYTES):
            file.write(source.randbytes(min(PIECE_BYTES, num_bytes - start)))
    return folder


def wait_until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + _PATIENCE_SECONDS
    while not is_so():
        assert time.monotonic() < end, "it takes too long"
        time.sleep(_LOOK_SECONDS)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, nargs="+", default=[4, 10, 40])
    parser.add_argument("--megabytes", type=int, default=500, help="size of the model")
    parser.add_argument("--megabytes-per-second", type=float, default=8.0, help="what the bucket sends")
    parser.add_argument("--folder", type=Path, help="where copies are written: one for each worker")
    parser.add_argument("--quick", action="store_true", help="3 workers, 20 MB; write nothing")
    parser.add_argument("--label", default="cpu", help="names the machine in the result's file name")
    return parser.parse_args()


if __name__ == "__main__":
    main()
