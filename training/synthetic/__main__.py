"""python -m training.synthetic --count 6000 --seed 0 --out tickets.csv"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from training.synthetic.files import write_csv
from training.synthetic.tickets import generate


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m training.synthetic", description="Write synthetic Larkfield tickets as CSV."
    )
    parser.add_argument("--count", type=int, default=6000, metavar="N", help="tickets (default: 6000)")
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="equal seeds, equal bytes (default: 0)"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.csv")
    options = parser.parse_args(arguments)
    if options.count < 1:
        parser.error("--count must be at least 1")
    write_csv(options.out, generate(options.count, options.seed))
    print(f"{options.count:,} tickets in {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
