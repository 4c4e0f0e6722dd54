"""Make a virtual environment with pip, also where Debian's Python comes without ensurepip.

Usage: python3 scripts/bootstrap.py FOLDER
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from urllib.parse import urljoin
from urllib.request import urlopen

PIP = "https://pypi.org/pypi/pip/json"


def main(folder: Path) -> None:
    if sys.version_info < (3, 10):  # noqa: UP036  this runs on whatever is there
        sys.exit(f"codl needs Python 3.10 or later, this is {sys.version.split()[0]}.")
    if folder.is_symlink():  # what it leads to would be cleared, and may be somebody else's
        sys.exit(
            f"{folder} is a link to {folder.resolve()}, which this would empty: remove the link "
            f"(rm {folder}) and run this again."
        )
    try:
        venv.create(folder, with_pip=True, clear=True)
    except subprocess.CalledProcessError:
        venv.create(folder, with_pip=False, clear=True)
        install_pip(folder / "bin" / "python")


def install_pip(python: Path) -> None:
    """Install pip from its own wheel, which can run as it is."""
    with urlopen(PIP) as answer:
        files = json.load(answer)["urls"]
    wheels = (file["url"] for file in files if file["packagetype"] == "bdist_wheel")
    url = urljoin(PIP, next(wheels))
    with tempfile.TemporaryDirectory() as folder, urlopen(url) as content:
        wheel = Path(folder) / url.rsplit("/", 1)[1]
        wheel.write_bytes(content.read())
        command = [python, wheel / "pip", "install", "--quiet", "--no-index", wheel]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
