"""The command line in processes of their own, which tests may kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from normalign_reproduction.files import load_cache

ROOT = Path(__file__).parents[1]


class Server:
    """Starts commands without the seconds that importing torch takes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.tiny", "serve"],
            text=True,
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(paths),
                "OMP_NUM_THREADS": "1",  # threads that wait for each other are slow
            },
        )

    def start(self, *words: str) -> int:
        """Start a command; return its process."""
        request = {
            "words": words,
            "out": str(self.folder / "out.txt"),
            "err": str(self.folder / "err.txt"),
        }
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return self.wait()

    def wait(self) -> int:
        """Wait for the command; return its exit code, negative for a signal."""
        assert self.process.stdout is not None
        return int(self.process.stdout.readline())

    def run(self, *words: str) -> int:
        self.start(*words)
        return self.wait()

    @property
    def err(self) -> str:
        return (self.folder / "err.txt").read_text()

    def close(self) -> None:
        try:
            self.process.communicate("", timeout=60)
        except subprocess.TimeoutExpired:  # a command that a failed test left
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.communicate()
            raise


def progress(out: Path) -> list[dict]:
    """Return the progress of the batches that were begun below a folder."""
    files = sorted((out / "work").glob("*.progress"))
    return [state for state in map(load_cache, files) if state]


def wait_for(condition, *, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition was never met"
        time.sleep(0.02)


def is_alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"


def results(out: Path) -> dict[str, str]:
    """Return the text of each stored result, by the file's name."""
    stored = sorted((out / "results").rglob("*.json"))
    return {
        path.name: json.dumps(json.loads(path.read_text())["result"]) for path in stored
    }
