"""Have a machine with a GPU tell all that only a GPU can tell, in stages of minutes.

    python3 scripts/gpu_day.py --list
    python3 scripts/gpu_day.py                            # all stages
    python3 scripts/gpu_day.py about kernels parity       # some
    python3 scripts/gpu_day.py --stages eager,fp8 --within 570 --copy-to "$OUT"
    python3 scripts/gpu_day.py --dry-run                  # tiny models on a pretended GPU

Each stage runs in a process of its own, is stopped at its limit, and leaves the others be if it fails. What
all have found so far is in out/gpu_day/gpu_day.json after each. It needs no git and no network.
"""

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests"), str(ROOT)]

from benchmarks.gpu.stages.runner import NEEDS_GPU, Play, has_gpu, is_right, play, table  # noqa: E402
from benchmarks.gpu.stages.stages import STAGES  # noqa: E402


def main() -> int:
    options = parse_arguments()
    if options.list:
        for name, stage in STAGES.items():
            print(f"{name:12}{stage.limit_seconds:4} s at most  {stage.shows}")
        return 0
    if not (options.dry_run or has_gpu()):
        print(f"gpu_day {NEEDS_GPU}", file=sys.stderr)
        return 2
    names = chosen(options)
    report = play(names, Play(options.out, options.dry_run, options.copy_to, options.within))
    print(table(report))
    return 0 if is_right(report, names) else 1


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="STAGE", help="all by default")
    parser.add_argument("--stages", default="", help="the same, with commas")
    parser.add_argument("--list", action="store_true", help="show the stages, and end")
    parser.add_argument("--dry-run", action="store_true", help="play tiny models on a pretended GPU")
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "gpu_day", help="for reports and weights")
    parser.add_argument(
        "--copy-to", type=Path, metavar="FOLDER", help="copy the report there after each stage"
    )
    parser.add_argument(
        "--within", type=float, metavar="SECONDS", default=float("inf"), help="for all stages"
    )
    return parser.parse_args()


def chosen(options: argparse.Namespace) -> list[str]:
    names = [*options.names, *filter(None, options.stages.split(","))]
    unknown = [name for name in names if name not in STAGES]
    if unknown:
        sys.exit(f"no stage {', '.join(unknown)}; the stages are {', '.join(STAGES)}")
    return names or list(STAGES)


if __name__ == "__main__":
    sys.exit(main())
