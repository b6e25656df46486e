"""Everything here needs numba, the extra `fast`."""

import pytest

pytest.importorskip("numba")
