"""No public name goes or changes unless the changelog says so."""

from __future__ import annotations

from tests.public_api import (
    CHANGELOG,
    COMMAND,
    STORED,
    complaint,
    missing_names,
    text,
)


def test_the_stored_names_are_those_of_the_package():
    old, new = STORED.read_text(encoding="utf-8"), text()
    missing = missing_names(old, new, CHANGELOG.read_text(encoding="utf-8"))
    assert not missing, complaint(missing)
    changed = sorted(set(old.splitlines()) ^ set(new.splitlines()))
    remedy = f"Public names are new or have changed. Run {COMMAND} and commit the list."
    assert not changed, "\n".join([remedy, *changed])


def test_what_is_gone_or_changed_must_be_mentioned():
    old = "a.f(x)\na.g(x, y=1)\na.C: class\na.C.m(self)\n"
    new = "a.f(x)\na.g(x, y=2)\na.C: class\na.h()\n"
    log = "# Log\n\n## Unreleased\n\n- nothing\n\n## 1.0\n\n- `g` and `C.m`\n"
    assert missing_names(old, new, log) == ["a.C.m", "a.g"]
    assert missing_names(old, new, log.replace("nothing", "`g`")) == ["a.C.m"]
    assert missing_names(old, old + new, log) == []


def test_a_name_in_prose_or_under_added_is_no_mention_of_a_change():
    log = "## Unreleased\n\n### Changed\n- `f` {}\n\n### Added\n- `g`, `a.C.m`\n"
    old = "a.f(x)\na.g(x)\na.C.m(self)\na.table(x)\n"
    assert missing_names(old, "", log.format("fills a table")) == [
        "a.C.m", "a.g", "a.table"
    ]  # fmt: skip
    assert missing_names(old, "", log.format("and `g`, `C.m(x)`, `table`")) == []


def test_the_message_says_what_to_do():
    message = complaint(["a.f"])
    assert "  a.f\n" in message
    assert "CHANGELOG.md" in message
    assert message.endswith(f"run {COMMAND}.\n")


def test_the_list_holds_methods_and_fields_but_nothing_inherited():
    lines = text().splitlines()
    assert "normalign.At: normalign.geometry.At" in lines
    (at,) = (line for line in lines if line.startswith("normalign.geometry.At:"))
    assert "token: int | None=None" in at.replace(" = ", "=")
    assert any(
        line.startswith("normalign.regularizers.GrokAlign.__call__(") for line in lines
    )
    assert not any("get_params" in line or " object at " in line for line in lines)
