"""Builds the HTML report of run folders and prints where each went.

python scripts/report.py outputs/maze_laptop/2026-11-30_17-00-00
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from grpo.report import build


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", metavar="FOLDER", nargs="+", type=Path, help="a run folder; finished or not")
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
