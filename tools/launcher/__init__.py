"""The launcher: sets up the environment, drives a real ComfyUI, and holds the commands of run.py.

`run.py` loads this package by its path, so that the folder around it (with the pack's own `nodes/`
and `kernels/`) never lands on `sys.path`. Tests do the same:
`runpy.run_path("run.py")["load_package"]("tools")`.
"""
