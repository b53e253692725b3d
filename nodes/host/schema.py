"""Node schemas that every supported ComfyUI understands."""

from __future__ import annotations

import dataclasses

from comfy_api.latest import io

_KNOWN = {field.name for field in dataclasses.fields(io.Schema)}


def schema(**fields) -> io.Schema:
    """``io.Schema`` without the fields that the running ComfyUI does not know yet.

    An unknown field, such as ``search_aliases`` on 0.3.75, raises TypeError there and takes every later node of the
    pack down with it.
    """
    return io.Schema(**{name: value for name, value in fields.items() if name in _KNOWN})
