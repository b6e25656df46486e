import gzip
import hashlib
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from handmade import tiny_source, write_mnist

from normalign.data import (
    MNIST,
    SOURCES,
    RemoteFile,
    Source,
    _files,
    source_named,
)
from normalign.data._files import (
    cache_dir,
    fetch,
    is_exact,
    locate,
    obtain,
    search_path,
)

PAYLOAD = bytes(range(256)) * 40


pytestmark = pytest.mark.usefixtures("offline_and_empty")


class Mirrors(BaseHTTPRequestHandler):
    """One behaviour per first folder of the path."""

    asked: list[str]
    release: threading.Event

    def do_GET(self):
        kind = self.path.split("/")[1]
        self.asked.append(kind)
        if kind == "missing":
            self.send_error(404)
            return
        body = {
            "lying": PAYLOAD[::-1],
            "short": PAYLOAD[:-100],
            "endless": PAYLOAD * 50,
        }.get(kind, PAYLOAD)
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if kind == "dripping":
            for start in range(0, len(body), 50):
                self.wfile.write(body[start : start + 50])
                self.wfile.flush()
                if self.release.wait(0.05):
                    return
            return
        if kind == "slow":
            self.wfile.write(body[:10])
            self.wfile.flush()
            self.release.wait(5)
            return
        self.wfile.write(body[: len(body) // 2] if kind == "truncated" else body)

    def log_message(self, *_):
        pass


@pytest.fixture
def mirrors() -> Iterator[tuple[str, list[str]]]:
    asked: list[str] = []
    release = threading.Event()
    handler = type("Handler", (Mirrors,), {"asked": asked, "release": release})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        release.set()
        server.shutdown()
        thread.join(5)


def leftovers(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*") if path.is_file()]


def test_a_good_mirror_delivers_the_file_under_its_final_name(mirrors, tmp_path):
    base, _ = mirrors
    folder = fetch(tiny_source(PAYLOAD), mirrors=[f"{base}/good"], data_dir=tmp_path)
    assert folder == tmp_path
    assert (folder / "tiny/part0.bin").read_bytes() == PAYLOAD
    assert leftovers(tmp_path) == ["part0.bin"]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ("truncated", "bytes"),
        ("short", "sent 10140 of 10240 bytes"),
        ("lying", "other bytes"),
        ("endless", "more than the 10240 bytes"),
        ("missing", "404"),
        ("slow", "timed out"),
    ],
)
def test_a_bad_mirror_is_refused_and_the_next_one_is_asked(
    mirrors, tmp_path, bad, reason
):
    base, asked = mirrors
    source = tiny_source(PAYLOAD)
    with pytest.raises(ConnectionError, match=reason):
        fetch(
            source, mirrors=[f"{base}/{bad}/"], data_dir=tmp_path, timeout=0.3,
            attempts=1,
        )  # fmt: skip
    assert leftovers(tmp_path) == []
    fetch(
        source, mirrors=[f"{base}/{bad}/", f"{base}/good/"], data_dir=tmp_path,
        timeout=0.3, attempts=1,
    )  # fmt: skip
    assert asked == [bad, bad, "good"]
    assert (tmp_path / "tiny/part0.bin").read_bytes() == PAYLOAD


def test_mirrors_are_gone_through_as_often_as_asked(mirrors, tmp_path):
    base, asked = mirrors
    with pytest.raises(ConnectionError, match="lying"):
        fetch(
            tiny_source(PAYLOAD), data_dir=tmp_path, attempts=2,
            mirrors=[f"{base}/lying", f"{base}/missing"],
        )  # fmt: skip
    assert asked == ["lying", "missing", "lying", "missing"]


def test_a_dripping_mirror_is_too_slow(monkeypatch, tmp_path):
    clock = iter([0.0, 1.0, 60.0])
    monkeypatch.setattr(_files.time, "monotonic", lambda: next(clock))
    with (tmp_path / "file").open("wb") as file:
        sink = _files._Sink(file, 10**6, patience=30.0)
        sink.write(b"a" * 100)
        with pytest.raises(TimeoutError, match="200 bytes in 60 s"):
            sink.write(b"b" * 100)


def test_a_mirror_that_is_never_silent_is_given_up_long_before_its_end(
    mirrors, tmp_path
):
    base, _ = mirrors
    began = time.monotonic()
    with pytest.raises(ConnectionError, match="too slow"):
        fetch(
            tiny_source(PAYLOAD), mirrors=[f"{base}/dripping"], data_dir=tmp_path,
            timeout=0.5, attempts=1,
        )  # fmt: skip
    # all of it takes 10 s at 1 kB/s, a piece of it one
    assert time.monotonic() - began < 5


UNPUBLISHED = Source(
    "uci", "a file without a checksum", (RemoteFile("uci/data.tar.gz", 0, ""),), (),
    "none", "nobody",
)  # fmt: skip
WITHOUT_FILES = Source("tables", "no files", (), (), "none", "nobody")


@pytest.mark.parametrize("source", [UNPUBLISHED, WITHOUT_FILES])
def test_what_cannot_be_verified_is_not_fetched_and_a_copy_stays(
    mirrors, tmp_path, source
):
    base, asked = mirrors
    copy = tmp_path / "uci/data.tar.gz"
    copy.parent.mkdir()
    copy.write_bytes(b"put here by hand")
    words = rf"^fetch: source must be .*checksums.*normalign data fetch {source.name}"
    with pytest.raises(ValueError, match=words):
        fetch(source, mirrors=[f"{base}/good"], data_dir=tmp_path)
    assert asked == []
    assert copy.read_bytes() == b"put here by hand"


def test_a_file_with_the_right_checksum_is_not_fetched_again(mirrors, tmp_path):
    base, asked = mirrors
    source = tiny_source(PAYLOAD, PAYLOAD)
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny/part0.bin").write_bytes(PAYLOAD)
    (tmp_path / "tiny/part1.bin").write_bytes(b"something else")
    fetch(source, mirrors=[f"{base}/good"], data_dir=tmp_path)
    assert asked == ["good"]
    assert (tmp_path / "tiny/part1.bin").read_bytes() == PAYLOAD


def test_a_refused_download_leaves_the_old_file_alone(mirrors, tmp_path):
    base, _ = mirrors
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny/part0.bin").write_bytes(b"a partial copy")
    with pytest.raises(ConnectionError):
        fetch(tiny_source(PAYLOAD), mirrors=[f"{base}/lying"], data_dir=tmp_path)
    assert (tmp_path / "tiny/part0.bin").read_bytes() == b"a partial copy"


def test_the_default_target_is_the_cache(mirrors, tmp_path):
    base, _ = mirrors
    source = tiny_source(PAYLOAD, mirrors=(f"{base}/good",))
    assert locate(source) is None
    assert obtain(source, callee="load_tiny") == tmp_path / "cache"
    assert locate(source) == tmp_path / "cache"


def test_folders_are_searched_in_the_documented_order(monkeypatch, tmp_path):
    monkeypatch.setenv("NORMALIGN_DATA", str(tmp_path / "shared"))
    given, shared, cache = search_path(tmp_path / "given")
    assert [given.name, shared.name, cache.name] == ["given", "shared", "cache"]
    source = tiny_source(PAYLOAD)
    for folder in (cache, shared, given):  # the later written wins over the earlier
        (folder / "tiny").mkdir(parents=True)
        (folder / "tiny/part0.bin").write_bytes(PAYLOAD)
        assert locate(source, tmp_path / "given") == folder


@pytest.mark.parametrize(
    ("platform", "variable", "end"),
    [
        ("linux", "XDG_CACHE_HOME", "base/normalign"),
        ("win32", "LOCALAPPDATA", "base/normalign/Cache"),
        ("darwin", "HOME", "base/Library/Caches/normalign"),
    ],
)
def test_the_cache_is_the_platforms_own(monkeypatch, platform, variable, end):
    monkeypatch.delenv("NORMALIGN_CACHE")
    monkeypatch.setattr("sys.platform", platform)
    monkeypatch.setenv(variable, "/base")
    assert cache_dir().as_posix() == f"/{end}"


def test_a_missing_source_says_what_where_and_how(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        obtain(
            source_named("mnist"), callee="load_mnist", data_dir=tmp_path / "here",
            download=False,
        )  # fmt: skip
    text = str(caught.value)
    assert text.startswith("load_mnist: data_dir must be a folder that holds mnist/")
    assert str(tmp_path / "here") in text
    assert str(tmp_path / "cache") in text
    assert "normalign data fetch mnist" in text


def test_without_a_network_the_same_is_said_with_the_reason(tmp_path):
    # port 9 of the loopback: nothing listens there
    source = tiny_source(PAYLOAD, mirrors=("http://127.0.0.1:9/",))
    with pytest.raises(FileNotFoundError, match="downloading failed") as caught:
        obtain(source, callee="load_tiny", data_dir=tmp_path)
    assert "normalign data fetch tiny" in str(caught.value)
    assert "127.0.0.1" in str(caught.value)


def test_without_pooch_the_extra_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(__import__("sys").modules, "pooch", None)
    source = tiny_source(PAYLOAD)
    with pytest.raises(ModuleNotFoundError, match=r"normalign\[download\]"):
        fetch(source, data_dir=tmp_path)
    with pytest.raises(FileNotFoundError, match=r"normalign\[download\]"):
        obtain(source, callee="load_tiny", data_dir=tmp_path)


def test_a_recompressed_file_is_exact_by_its_content(tmp_path):
    original, again = gzip.compress(PAYLOAD, 1), gzip.compress(PAYLOAD, 9)
    assert original != again

    def md5(raw: bytes) -> str:
        return hashlib.md5(raw, usedforsecurity=False).hexdigest()

    file = RemoteFile("a.gz", len(original), md5(original), md5(PAYLOAD))
    source = Source("a", "", (file,), ("http://x",), "", "")
    for raw, expected in (
        (original, True),
        (again, True),
        (gzip.compress(PAYLOAD[1:]), False),
        (original[:-20], False),
        (b"not gzip at all", False),
    ):
        (tmp_path / "a.gz").write_bytes(raw)
        assert is_exact(source, tmp_path) is expected


def test_a_handmade_mnist_is_found_but_not_exact(tmp_path):
    write_mnist(tmp_path, n_train=3, n_test=2)
    assert locate(MNIST, tmp_path) == tmp_path
    assert not is_exact(MNIST, tmp_path)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"attempts": 0}, "attempts must be at least 1"),
        ({"timeout": 0}, "timeout must be positive"),
        ({"mirrors": []}, "mirrors must be at least one URL"),
    ],
)
def test_bad_arguments_get_a_house_error(tmp_path, arguments, match):
    with pytest.raises(ValueError, match=f"^fetch: {match}"):
        fetch(tiny_source(PAYLOAD), data_dir=tmp_path, **arguments)


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"one of mnist, cifar10, got 'minst'"):
        source_named("minst")


def test_every_source_is_complete():
    for name, source in SOURCES.items():
        assert source.name == name
        assert source.licence
        assert source.citation
        assert all(url.startswith("https://") for url in source.mirrors)
        for file in source.files:
            assert len(file.md5) == 32
            assert file.path.startswith(f"{name}/")
