"""Draws docs/figures/decision_page.png: the page that the program of docs/tutorial.md ends with.

python scripts/draw_page.py     # needs Chromium
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
FIGURE = ROOT / "docs" / "figures" / "decision_page.png"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


def main() -> None:
    """Runs the program of the tutorial and takes a picture of its page."""
    program = re.findall(r"```python\n(.*?)```", (ROOT / "docs/tutorial.md").read_text(), re.DOTALL)
    browser = next(filter(None, map(shutil.which, BROWSERS)))
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        Path("tutorial.py").write_text("\n".join(program))
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        subprocess.run(
            [sys.executable, "tutorial.py"], check=True, env={**os.environ, "PYTHONPATH": path}
        )
        shot = Path(folder, "page.png")
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        options += [f"--user-data-dir={folder}/profile", "--window-size=1000,1235"]
        page = Path(folder, "report.html")
        page.write_text(page.read_text().replace(f"{Path(folder).resolve()}/", ""))
        subprocess.run([browser, *options, f"--screenshot={shot}", page.as_uri()], check=True)
        Image.open(shot).convert("P", palette=Image.Palette.ADAPTIVE).save(FIGURE, optimize=True)
        os.chdir(ROOT)


if __name__ == "__main__":
    main()
