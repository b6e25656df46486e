"""Lets the tests of this folder import the handmade files of tests/data."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "data"))
