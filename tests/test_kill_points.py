"""A run that is killed anywhere and resumed equals one that was never stopped."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from kill_points import INTERVAL, measure, table

POINTS = int(os.environ.get("GRPO_KILL_POINTS", "20"))


@pytest.mark.slow
def test_no_kill_point_loses_a_checkpoint_or_changes_a_number(tmp_path: Path) -> None:
    points = measure(POINTS, seed=0, scratch=tmp_path)
    sys.stdout.write(f"\n{table(points)}\n")
    assert len(points) == POINTS
    assert [point for point in points if point.differences] == [], table(points)
    assert max(point.lost for point in points) <= INTERVAL, "at most the steps since the last checkpoint"
    assert {point.phase for point in points} >= {"saving"}, "the points reach what they are about"
