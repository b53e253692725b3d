"""The widgets that the canvas shows for a node class, in the order in which it saves their values.

A saved workflow lists the values of a node's widgets without their names. Which value belongs to which input follows
from the node's description in ComfyUI's `/object_info` and from the widgets that the front end adds of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

_NO_DEFAULT = {"INT": 0, "FLOAT": 0, "STRING": "", "BOOLEAN": False, "COMBO": None}
_SEEDS = ("seed", "noise_seed")
_UPLOADS = ("image_upload", "animated_image_upload", "video_upload")
_BROWSER_ONLY = frozenset({"AUDIO_RECORD", "LOAD_3D", "LOAD_3D_ANIMATION", "WEBCAM"})


@dataclass(frozen=True)
class Widget:
    """One widget of a node: the input that it fills, its first value, and how the front end treats its value."""

    name: str
    default: object = None
    in_prompt: bool = True  # False: the front end's own, such as the control after generate
    dynamic_prompts: bool = False  # True: comments are removed from the text when it is queued
    advanced: bool = False  # True: newer front ends show it on request
    optional: bool = False  # True: nodes run without it, with their own default


@dataclass(frozen=True)
class Input:
    """One input of a node class: its name, its type (COMBO for a list of choices), and its options."""

    name: str
    kind: str
    options: dict
    required: bool

    @property
    def is_widget(self) -> bool:
        """Whether the canvas shows a widget for it, beside the socket that every widget has."""
        return self.kind in _NO_DEFAULT and not self.options.get("forceInput")

    @property
    def needs_browser(self) -> bool:
        """Whether its value exists only in an open browser, such as a recording."""
        return self.kind in _BROWSER_ONLY


def inputs(info: dict) -> Iterator[Input]:
    """The inputs of a node class in the order of its description: the required ones, then the optional ones."""
    for section in ("required", "optional"):
        for name, spec in info["input"].get(section, {}).items():
            options = dict(spec[1]) if len(spec) > 1 else {}
            kind = spec[0]
            if isinstance(kind, list):
                options.setdefault("options", kind)
                kind = "COMBO"
            yield Input(name, options.get("widgetType") or kind, options, section == "required")


def widgets(info: dict) -> list[Widget]:
    """The widgets of a node class in the order in which the canvas saves their values."""
    described = list(inputs(info))
    found = [widget for input_ in described if input_.required for widget in _of_input(input_)]
    found += _upload_button(described)
    return found + [widget for input_ in described if not input_.required for widget in _of_input(input_)]


def _of_input(input_: Input) -> Iterator[Widget]:
    """The widget of an input, followed by the controls that the front end adds for changing it after each run."""
    if not input_.is_widget:
        return
    options = input_.options
    yield Widget(
        input_.name,
        default_value(input_),
        dynamic_prompts=bool(options.get("dynamicPrompts")),
        advanced=bool(options.get("advanced")),
        optional=not input_.required,
    )
    if options.get("control_after_generate", input_.kind == "INT" and input_.name in _SEEDS):
        yield Widget("control_after_generate", "fixed", in_prompt=False)
        if input_.kind == "COMBO":
            yield Widget("control_filter_list", "", in_prompt=False)


def default_value(input_: Input) -> object:
    """The value that the canvas shows first."""
    choices = input_.options.get("options") or [_NO_DEFAULT[input_.kind]]
    return input_.options.get("default", choices[0])


def _upload_button(described: list[Input]) -> list[Widget]:
    """The button that the front end adds behind the required inputs of a node that can upload a file."""
    for input_ in described:
        if input_.kind != "COMBO" or not input_.required:
            continue
        if any(input_.options.get(name) for name in _UPLOADS):
            return [Widget("upload", "image", in_prompt=False)]
        if input_.name == "audio" and input_.options.get("audio_upload"):
            return [Widget("upload", "", in_prompt=False)]
    return []
