"""Draw the picture of the page on one's own network, by running the page's code.

Run ``python docs/profile_figure.py`` from the root of the repository; it takes about
half a minute on two cores.
"""

from __future__ import annotations

import contextlib
import re
import tempfile
from pathlib import Path

import matplotlib as mpl
import torch

PAGE = Path(__file__).parent / "measure-your-own-network.md"
PICTURE = Path(__file__).parent / "images" / "profile.svg"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def main() -> None:
    """Run the page up to its picture and save that."""
    mpl.use("agg")
    mpl.rcParams.update({"svg.hashsalt": "normalign", "font.size": 9})
    torch.set_num_threads(1)
    names: dict = {"__name__": PAGE.stem}
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for block in BLOCK.findall(PAGE.read_text()):
            exec(compile(block, str(PAGE), "exec"), names)
            if "figure" in names:
                break
    names["figure"].savefig(PICTURE, facecolor="white", metadata={"Date": None})


if __name__ == "__main__":
    main()
