"""Builds the HTML report of runs and sweeps and prints where each went.

python scripts/report.py outputs/maze/2026-11-30_18-48-50-762343     # with its newest evaluation
python scripts/report.py outputs/maze/sweep_2026-11-30_19-00-00-000000  # all trials side by side
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from grpo.report import build


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", metavar="FOLDER", nargs="+", type=Path, help="of a run or a sweep; finished or not")
    exit_code = 0
    for folder in parser.parse_args().folders:
        try:
            print(build(folder))
        except FileNotFoundError as error:
            print(f"error: {error}", file=sys.stderr)
            exit_code = 2
        except ValueError as error:
            print(f"error: {error}", file=sys.stderr)
            exit_code = max(exit_code, 1)
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
