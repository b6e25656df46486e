"""Shared set-up: that of the library's tests."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

_FILE = Path(__file__).parents[2] / "tests" / "conftest.py"
_spec = spec_from_file_location("library_conftest", _FILE)
assert _spec is not None
assert _spec.loader is not None
library_conftest = sys.modules["library_conftest"] = module_from_spec(_spec)
_spec.loader.exec_module(library_conftest)
globals().update(
    {name: value for name, value in vars(library_conftest).items() if name[0] != "_"}
)
