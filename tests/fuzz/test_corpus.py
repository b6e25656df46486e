"""Cases that failed once pass now, and the first cases of each family pass."""

from __future__ import annotations

import json

import pytest

from tests.fuzz.driver import CORPUS, PACKAGE, QUOTAS, check_case, draw_case

FAILURES = sorted(CORPUS.glob("*.json"))


@pytest.mark.parametrize("path", FAILURES, ids=lambda path: path.stem)
def test_a_case_that_failed_passes(path):
    entry = json.loads(path.read_text(encoding="utf-8"))
    check_case(PACKAGE, entry["family"], entry["case"])


@pytest.mark.parametrize("index", range(5))
@pytest.mark.parametrize("family", QUOTAS)
def test_the_first_cases_pass(family, index):
    check_case(PACKAGE, family, draw_case(PACKAGE, family, seed=0, index=index))
