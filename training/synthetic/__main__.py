"""python -m training.synthetic --count 6000 --seed 0 --out tickets.csv"""

import argparse
import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from training.command_line import guarded, whole
from training.synthetic.files import write_csv
from training.synthetic.tickets import MOST, Stream


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m training.synthetic", description="Write synthetic Larkfield tickets as CSV."
    )
    parser.add_argument(
        "--count", type=whole(1, MOST), default=6000, metavar="N", help="tickets (default: 6000)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="equal seeds, equal bytes (default: 0)"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.csv")
    options = parser.parse_args(arguments)

    def command() -> int:
        write_csv(options.out, islice(Stream(options.seed), options.count))
        print(f"{options.count:,} tickets in {options.out}")
        return 0

    return guarded("training.synthetic", command, stopped="stopped; the file is not whole")


if __name__ == "__main__":
    sys.exit(main())
