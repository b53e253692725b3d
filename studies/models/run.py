"""The matrix in any environment that has ComfyUI's packages: `python -P run.py COMFYUI_FOLDER`.

`python run.py models` does the same in the repository's own environment.
"""

import runpy
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

if __name__ == "__main__":
    load_package = runpy.run_path(str(ROOT / "run.py"))["load_package"]
    load_package("studies")
    from studies.models import matrix

    sys.exit(matrix.run(Path(sys.argv[1]).resolve(), sys.argv[2:]))
