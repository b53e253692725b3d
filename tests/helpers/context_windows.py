"""ComfyUI's Context Windows over the images of a batch, with what newer ones take besides."""

from __future__ import annotations

from typing import Any

_GIVEN = {
    "context_overlap": 0,
    "context_schedule": "standard_static",
    "context_stride": 1,
    "closed_loop": False,
    "fuse_method": "relative",
    "dim": 0,
}


def windows_over_images(app: Any, model: Any, length: int):
    """A MODEL that is evaluated on so many images at a time."""
    schema = app.classes["ContextWindowsManual"].GET_SCHEMA()
    defaults = {field.id: getattr(field, "default", None) for field in schema.inputs}
    further = {name: value for name, value in defaults.items() if value is not None}
    inputs = {**further, **_GIVEN, "context_length": length}
    return app.run("ContextWindowsManual", model=model, **inputs)[0]
