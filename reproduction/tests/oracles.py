"""The plain transcription of Algorithm 1, the oracle of the library's kernel tests."""

import runpy
from pathlib import Path
from types import SimpleNamespace

_FILE = Path(__file__).parents[2] / "tests" / "kernels" / "transcription.py"

transcription = SimpleNamespace(**runpy.run_path(str(_FILE)))
