"""Tiny tables in TabArena's local form, and a local server in place of OpenML."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from normalign_reproduction.data import TabArenaFacts

# without pandas whoever imports this module is skipped
pd = pytest.importorskip("pandas")

FACTS = TabArenaFacts(
    name="toy", openml_dataset_id=7, openml_task_id=70, target="bought",
    problem_type="binary", n_rows=6, n_inputs=3, n_classes=2, licence="CC0",
)  # fmt: skip

ARFF = """@RELATION toy
@ATTRIBUTE age REAL
@ATTRIBUTE colour {red, 'dark blue'}
@ATTRIBUTE word STRING
@ATTRIBUTE bought {no, yes}
@DATA
1.5, red, a, no
2, 'dark blue', b, yes
?, red, 'it\\'s', no
4, ?, a, yes
5, red, b, no
6, red, ?, yes
"""


def toy_frame() -> Any:
    """The table of ARFF, as a frame."""
    return pd.DataFrame(
        {
            "age": [1.5, 2, None, 4, 5, 6],
            "colour": pd.Categorical(
                ["red", "dark blue", "red", None, "red", "red"],
                categories=["red", "dark blue"],
            ),
            "word": pd.Categorical(["a", "b", "it's", "a", "b", None]),
            "bought": pd.Categorical(["no", "yes"] * 3),
        }
    )


def toy_entry(**changes: Any) -> dict[str, Any]:
    return {
        "name": "toy",
        "file": "toy.parquet",
        "target": "bought",
        "problem_type": "binary",
        "n_rows": 6,
        "n_features": 3,
        "n_classes": 2,
        "openml_dataset_id": 7,
        "openml_task_id": 70,
        "licence": "CC0",
        "matches_tabarena": True,
        "note": "",
    } | changes


def write_tabarena(folder: Path, frame: Any = None, **changes: Any) -> Path:
    """Write the toy table and a manifest below a folder."""
    place = folder / "tabarena"
    place.mkdir(parents=True, exist_ok=True)
    entry = toy_entry(**changes)
    (toy_frame() if frame is None else frame).to_parquet(place / "toy.parquet")
    (place / "manifest.json").write_text(json.dumps([entry]))
    return place


@dataclass
class OpenML:
    """The server's state; `behaviour` maps "data" or "file" to how it misbehaves."""

    address: str = ""
    arff: bytes = ARFF.encode()
    behaviour: dict[str, str] = field(default_factory=dict)
    fields: dict[str, str | None] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    release: threading.Event = field(default_factory=threading.Event)

    @property
    def server(self) -> str:
        return f"{self.address}/api/v1/xml"

    def description(self) -> bytes:
        md5 = hashlib.md5(self.arff, usedforsecurity=False).hexdigest()
        fields = {
            "id": "7", "name": "toy", "version": "1", "format": "ARFF",
            "licence": "CC0", "url": f"{self.address}/file/toy.arff",
            "default_target_attribute": "bought", "md5_checksum": md5,
        } | self.fields  # fmt: skip
        inner = "".join(
            f"<oml:{key}>{value}</oml:{key}>"
            for key, value in fields.items()
            if value is not None
        )
        return (
            '<oml:data_set_description xmlns:oml="http://openml.org/openml">'
            f"{inner}</oml:data_set_description>"
        ).encode()


@contextmanager
def served_openml() -> Iterator[OpenML]:
    state = OpenML()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            kind = "file" if self.path.startswith("/file/") else "data"
            state.asked.append(self.path)
            body = state.arff if kind == "file" else state.description()
            how = state.behaviour.get(kind, "good")
            if how == "missing":
                self.send_error(404)
                return
            if how == "lying":
                body = body.replace(b"4, ?, a, yes", b"5, ?, a, yes")
            elif how == "garbled":
                body = b"<oml:data_set_description"
            elif how == "short":  # and says so: only the checksum can tell
                body = body[:-30]
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if how == "slow":
                self.wfile.write(body[:10])
                self.wfile.flush()
                state.release.wait(10)
                return
            self.wfile.write(body[: len(body) // 2] if how == "truncated" else body)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        state.address = f"http://127.0.0.1:{server.server_port}"
        yield state
        state.release.set()
        server.shutdown()
        thread.join(5)
