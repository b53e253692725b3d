"""`from studies...` works in these tests."""

import runpy
from pathlib import Path

runpy.run_path(str(Path(__file__).resolve().parents[3] / "run.py"))["load_package"]("studies")
