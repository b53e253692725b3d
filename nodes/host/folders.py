"""Files and folders of ComfyUI that a person can name: models/w2w, models/loras, input, output, and
the pack's assets.

One rule for all names (``_inside``): they stay inside of their folder, as ComfyUI's own Save nodes
have it. A link that somebody has put into such a folder is part of it, for saving and for loading
alike.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import folder_paths

from ..common.atomic_write import atomic_write, file_stamp
from .input_checks import shown

ASSETS = Path(__file__).resolve().parents[2] / "assets"
SPACES = "w2w"
_OWN_SPACES = "*-w2w.safetensors"
_LONGEST_NAME = 255  # bytes of a file or folder name, for every common file system
#: How a prompt names an embedding, as ComfyUI's tokenizers read it from models/embeddings.
EMBEDDING_MARK = "embedding:"
_EMBEDDING_ENDINGS = (".safetensors", ".pt", ".bin")
_NAME = re.compile(r"[\w][\w .()+-]*")
#: Windows has devices of these names in every folder, whatever ending follows, and drops dots and
#: blanks at the end of a name.
_OF_WINDOWS = re.compile(
    r"(con|prn|aux|nul|(com|lpt)[0-9\xb9\xb2\xb3]) *(\..*)?|.*[. ]", re.IGNORECASE | re.DOTALL
)

folder_paths.add_model_folder_path(SPACES, os.path.join(folder_paths.models_dir, SPACES))
folder_paths.folder_names_and_paths[SPACES][1].add(".safetensors")


def space_names() -> list[str]:
    """The weight spaces to choose from: those of models/w2w, then those that come with the pack."""
    own = [name for name in folder_paths.get_filename_list(SPACES) if ".building" not in name]
    return own + [path.name for path in sorted(ASSETS.glob(_OWN_SPACES)) if path.name not in own]


def space_path(name: str) -> Path:
    """The file of a weight space; raises ValueError when it is neither in models/w2w nor with the
    pack.
    """
    found = folder_paths.get_full_path(SPACES, name)
    if found:
        return Path(found)
    if name in {path.name for path in ASSETS.glob(_OWN_SPACES)}:
        return ASSETS / name
    raise ValueError(
        f"There is no weight space {shown(name)} in models/w2w: build or save one, or choose "
        "another."
    )


def new_space(name: str) -> Path:
    """Where a weight space of this name goes in models/w2w, folders included.

    Raises ValueError for a name that leads out of it or that file systems do not take.
    """
    name = name.strip().removesuffix(".safetensors")
    pieces = name.split("/")
    longest = max(len(piece.encode()) for piece in pieces)  # what is written beside it has endings
    if not all(_NAME.fullmatch(piece) for piece in pieces) or longest > _LONGEST_NAME - 55:
        raise ValueError(
            f"{shown(name)} is not a name for a file: use up to 200 letters, digits, spaces, '-' "
            "and '_', and '/' between folders."
        )
    _refuse_windows_names(f"{name}.safetensors")
    return Path(folder_paths.get_folder_paths(SPACES)[0], *pieces[:-1], f"{pieces[-1]}.safetensors")


def _refuse_windows_names(name: str) -> None:
    """Raise ValueError where a file or folder of a name could not be copied to Windows."""
    for piece in name.replace("\\", "/").split("/"):
        if _OF_WINDOWS.fullmatch(piece) and piece not in (".", ".."):
            raise ValueError(
                f"Windows cannot have a file or folder {shown(piece)}: choose another name."
            )


def lora_names() -> list[str]:
    """ComfyUI's LoRA files."""
    return folder_paths.get_filename_list("loras")


def lora_path(name: str) -> Path:
    """The file of a LoRA in ComfyUI's folders; raises ValueError when it is not there."""
    found = folder_paths.get_full_path("loras", name)
    if not found:
        raise ValueError(f"There is no LoRA {shown(name)} in models/loras: choose one of the list.")
    return Path(found)


def lora_folder(name: str) -> Path:
    """A folder inside ComfyUI's LoRA folders ("" is the first of them itself), or inside its output
    or input folder.

    Raises ValueError when it leads elsewhere or is not there.
    """
    return _folder(
        name,
        [
            *folder_paths.get_folder_paths("loras"),
            folder_paths.get_output_directory(),
            folder_paths.get_input_directory(),
        ],
        "models/loras, output or input",
    )


def spaces_folder(name: str) -> Path:
    """A folder inside models/w2w or ComfyUI's input folder; errors as ``lora_folder``."""
    roots = [*folder_paths.get_folder_paths(SPACES), folder_paths.get_input_directory()]
    return _folder(name, roots, "models/w2w or input")


def input_file(name: str) -> Path:
    """A file of ComfyUI's input folder; raises ValueError when it leads elsewhere or is not
    there.
    """
    path = _inside(folder_paths.get_input_directory(), name)
    if path is None or not path.is_file():
        raise ValueError(
            f"There is no file {shown(name)} in ComfyUI's input folder: put it there, or paste its "
            "text."
        )
    return path


def lora_stamp(name: str) -> str:
    """``file_stamp`` of a LoRA of ComfyUI's list; "" for a name that is not known."""
    found = folder_paths.get_full_path("loras", name)
    return file_stamp(Path(found)) if found else ""


def _inside(root: str, name: str) -> Path | None:
    """The path of a name below a folder, there or not; None when it leads out of it or can be no
    file's.
    """
    name = name.strip().strip('"')
    top = Path(os.path.abspath(root))
    if "\0" in name:
        return None
    path = Path(os.path.abspath(top / name))
    too_long = any(len(part.encode("utf-8", "replace")) > _LONGEST_NAME for part in path.parts)
    return path if path.is_relative_to(top) and not too_long else None


def _folder(name: str, roots: list[str], where: str) -> Path:
    for root in roots:
        path = _inside(root, name)
        if path is not None and path.is_dir():
            return path
    raise ValueError(
        f"There is no folder {shown(name)} in {where}: give the path of one inside them."
    )


def resolve_input_file(name: str, what: str) -> Path:
    """A file or folder of the input or the output folder by its relative path; ``what`` names it in
    messages.

    Raises ValueError when the name leads elsewhere or nothing is there.
    """
    for root in (folder_paths.get_input_directory(), folder_paths.get_output_directory()):
        path = _inside(root, name) if name.strip() else None
        if path is not None and path.exists():
            return path
    raise ValueError(
        f"There is no {what} {shown(name.strip())} in ComfyUI's input or output folder: put it "
        "there, and give its path from that folder on."
    )


def input_stamp(name: str, what: str) -> str:
    """Changes with what ``resolve_input_file`` finds: a file, or the files of a folder; "" where
    there is none.
    """
    try:
        path = resolve_input_file(name, what)
    except ValueError:
        return ""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    return "\n".join(f"{file.name} {file_stamp(file)}" for file in files)


def autoencoder_path(name: str) -> Path:
    """A sparse autoencoder, file or folder, as ``resolve_input_file`` finds it, or that of the demo
    model.
    """
    own = {path.name: path for path in ASSETS.glob("*-autoencoder.safetensors")}
    return own.get(name.strip()) or resolve_input_file(name, "sparse autoencoder")


def people_folder(name: str) -> Path:
    """A folder of folders of images, as ``resolve_input_file`` finds it, or that of the demo
    model.
    """
    own = {path.name: path for path in ASSETS.glob("*-people")}
    path = own.get(name.strip()) or resolve_input_file(name, "folder of folders of images")
    if not path.is_dir():
        raise ValueError(
            f"{shown(name.strip())} is a file: give a folder with a folder of images for each "
            "person."
        )
    return path


def resolve_optional_file(name: str, what: str) -> Path | None:
    """As ``resolve_input_file``; None for an empty name."""
    return resolve_input_file(name, what) if name.strip() else None


def save_table(table: str, prefix: str) -> str:
    """Write a table as .csv to the output folder; returns a line for the report that names the
    file, empty without a prefix.
    """
    if not prefix.strip():
        return ""
    path = next_file(prefix.strip(), ".csv")
    with atomic_write(path) as temporary:
        temporary.write_text(table, encoding="utf-8")
    return f"\nSaved as {relative(path)} in ComfyUI's output folder."


def next_file(prefix: str, suffix: str) -> Path:
    """Where the next file of a prefix goes, such as output/glassbox/name_00001_.safetensors; makes
    the folder.

    The prefix may hold folders and ComfyUI's %date% marks; raises ValueError when it leads out of
    the folder.
    """
    root = folder_paths.get_output_directory()
    if _inside(root, prefix) is None:
        raise ValueError(
            f"{shown(prefix)} is not a prefix in ComfyUI's output folder: give one such as "
            "glassbox/name."
        )
    _refuse_windows_names(f"{prefix}_00001_{suffix}")
    try:
        folder, name, counter, _, _ = folder_paths.get_save_image_path(prefix, root)
    except Exception as error:
        if type(error) is not Exception:
            raise
        # newer ComfyUI follows links before it compares, and raises nothing more exact
        raise ValueError(
            f"{shown(prefix)} leads through a link out of ComfyUI's output folder, where this "
            "ComfyUI does not save: give a prefix inside it."
        ) from error
    return Path(folder) / f"{name}_{counter:05}_{suffix}"


def named_file(name: str, suffix: str) -> Path:
    """The file of that name in the output folder, there or not; raises ValueError when the name
    leads elsewhere.
    """
    path = _inside(folder_paths.get_output_directory(), f"{name.strip()}{suffix}")
    if path is None or path.name == suffix:
        raise ValueError(
            f"{shown(name)} names no file in ComfyUI's output folder: give a name such as "
            "glassbox/training."
        )
    _refuse_windows_names(f"{name.strip()}{suffix}")
    return path


def relative(path: Path) -> str:
    """A path as people write it: from the output folder on, with forward slashes."""
    return (
        Path(os.path.abspath(path))
        .relative_to(os.path.abspath(folder_paths.get_output_directory()))
        .as_posix()
    )


def existing_file(name: str) -> Path:
    """A file of the output folder by its relative path; raises ValueError when it leads elsewhere
    or is not there.
    """
    path = _inside(folder_paths.get_output_directory(), name)
    if path is None:
        raise ValueError(
            f"{shown(name)} leads out of ComfyUI's output folder: give a path inside it."
        )
    if not path.is_file():
        raise ValueError(
            f"There is no file {shown(name)} in ComfyUI's output folder: give the path that Save "
            "gives."
        )
    return path


def output_stamp(name: str) -> str:
    """``file_stamp`` of a file of the output folder."""
    return file_stamp(existing_file(name))


def embedding_stamp(text: str) -> str:
    """Changes with the files of the embeddings that a text may name; "" for a text that names none.

    It may cover a file too many, such as ``a.pt`` for ``embedding:ab``; that costs a run, where
    one too few would hide a change.
    """
    text = text.replace("\\(", "(").replace("\\)", ")").replace("\\", "/").lower()
    if EMBEDDING_MARK not in text:
        return ""
    stamps = [
        EMBEDDING_MARK
    ]  # a text whose embeddings are all missing is still one that may change
    for root in folder_paths.get_folder_paths("embeddings"):
        for folder, folders, files in os.walk(root, followlinks=True):
            folders.sort()
            for name in sorted(files):
                path = Path(folder, name)
                names = _embedding_names(path, Path(root))
                if any(f"{EMBEDDING_MARK}{name}" in text for name in names):
                    stamps.append(f"{path} {file_stamp(path)}")
    return "\n".join(stamps)


def texts_stamp(name: str, what: str) -> str:
    """``input_stamp`` of a file or folder of texts, and the stamps of the embeddings they name."""
    stamp = input_stamp(name, what)
    if not stamp:
        return ""
    path = resolve_input_file(name, what)
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    texts = [file.read_text("utf-8", errors="replace") for file in files if file.is_file()]
    return "\n".join([stamp, embedding_stamp("\n".join(texts))])


def _embedding_names(path: Path, root: Path) -> list[str]:
    """The names by which a prompt reaches a file: from each folder on, without its ending."""
    inside = path.relative_to(root).as_posix().lower()
    plain = inside.rpartition(".")[0] if inside.endswith(_EMBEDDING_ENDINGS) else inside
    pieces = plain.split("/")
    return ["/".join(pieces[first:]) for first in range(len(pieces))]
