"""A GPU and FLUX.1-schnell's size: parity with diffusers, images a minute, memory, share of the ceiling.

    python -m benchmarks gpu                # needs a GPU with 40 GB, 30 GB of memory and of disk
    python -m benchmarks gpu --only eager   # one stage; writes no result
    python -m benchmarks gpu --pretend      # tiny models on a pretended GPU, to see that it works

It plays the stages of `scripts/gpu_day.py` that measure, and keeps a result. Weights are random, which cost
what trained ones cost; text encoders are tiny, as prompts that come again are not encoded again. Images are
drawn at 1360×768 in 4 steps, several at a time, by the whole engine: as it is, with products in fp8 and in
int8, and with the transformer's blocks compiled by `torch.compile`. Parity is that of small models of every
family. Nothing else should run on the machine.
"""

import argparse
import sys

from benchmarks.gpu.stages.runner import NEEDS_GPU, Play, has_gpu, is_right, play, table
from benchmarks.shared.places import OUT, RESULTS
from benchmarks.shared.report import read_conditions, write_report

STAGES = ("about", "parity", "eager", "fp8", "int8", "compiled")
FOLDER = OUT / "gpu_day"


def main() -> int:
    options = parse_arguments()
    if not (options.pretend or has_gpu()):
        print(f"the benchmark {NEEDS_GPU}", file=sys.stderr)
        return 2
    names = options.only or STAGES
    report = play(names, Play(FOLDER, is_dry=options.pretend))
    played = {name: report[name] for name in names}
    text = table(played)
    print(text)
    if not (options.pretend or options.only):
        conditions = read_conditions(["diffusers"])  # `about` tells the others
        write_report(RESULTS / f"gpu_{options.label}", {"stages": played}, text, conditions)
    return 0 if is_right(report, names) else 1


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--label", default="gpu", help="names the result files: gpu_LABEL_DATE")
    parser.add_argument("--only", nargs="+", choices=STAGES, metavar="STAGE", help=", ".join(STAGES))
    parser.add_argument("--pretend", action="store_true", help="tiny models, no GPU; write nothing")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
