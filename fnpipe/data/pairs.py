"""Which photos there are, and which text file holds the labels of each."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fnpipe.data.build import Notes, scan_photos
from fnpipe.data.decode import SUFFIXES
from fnpipe.types import DataError


Pair = tuple[Path, Path]
"""A photo and its label file, which need not exist."""


def find_photos(entry: Any, root: Path) -> Iterator[Path]:
    """Photos of a folder, a text file, or a list of them."""
    if isinstance(entry, list | tuple):
        for part in entry:
            yield from find_photos(part, root)
        return
    if not isinstance(entry, str):
        raise DataError(f"wanted a folder, a text file, or a list of them, got {entry!r:.80}")
    place = _place(root, entry)
    if place.is_dir():
        yield from folder_photos(place)
    elif place.suffix.lower() in SUFFIXES:
        raise DataError(f"{place}: wanted a folder, or a text file with a photo a line")
    elif place.is_file():
        lines = place.read_text(encoding="utf-8-sig", errors="surrogateescape").splitlines()
        for line in filter(None, map(str.strip, lines)):
            yield Path(os.path.abspath(place.parent / with_slashes(place.parent, line)))
    else:
        raise DataError(
            f"no folder or file {place}; pass root= (--root) if the data set lies elsewhere"
        )


def _place(root: Path, entry: str) -> Path:
    """Where a split lies. Roboflow says ../train/images for the folder train beside data.yaml."""
    name = with_slashes(root, entry)
    if name.startswith("../") and not (root / name).exists() and (root / name[3:]).exists():
        name = name[3:]
    return Path(os.path.abspath(root / name))


def with_slashes(root: Path, name: str) -> str:
    """A file name whose backslashes part its folders, as on Windows, unless a file is so called."""
    return name if "\\" not in name or (root / name).exists() else name.replace("\\", "/")


def folder_photos(folder: Path) -> list[Path]:
    """Photos in ``folder`` and below, in the order of their names. Raises ``DataError``."""
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder")
    return sorted(_walk(folder), key=str)


def _walk(folder: Path) -> Iterator[Path]:
    """Photos in ``folder`` and below, each real folder once though links may lead in circles."""
    seen = set()
    for here, folders, files in os.walk(folder, followlinks=True):
        real = os.path.realpath(here)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        folders.sort()  # which of two links to a folder comes first must not depend on the disk
        for file in files:
            if os.path.splitext(file)[1].lower() in SUFFIXES:
                yield Path(here, file)


def mirror(photo: Path, images: Path, labels: Path) -> Path:
    """The label file in a folder that has the subfolders and names of the photos' folder."""
    return (labels / photo.relative_to(images)).with_suffix(".txt")


def swap_folder(photo: Path, labels: str) -> Path:
    """The label file in the folder whose last part ``images`` is called ``labels`` instead."""
    folders = list(photo.parent.parts)
    if "images" in folders:
        folders[-1 - folders[::-1].index("images")] = labels
    return Path(*folders, photo.name).with_suffix(".txt")


def leads_out(name: str) -> bool:
    """Whether a file name leads out of the folder that it is relative to."""
    return os.path.isabs(name) or os.path.normpath(name).split(os.sep)[0] == ".."


def scan_pairs(
    root: Path, pairs: list[Pair], notes: Notes, **looks: Any
) -> list[tuple[Path, Path, tuple[int, int]]]:
    """The pairs whose photo can be read, with its size; ``looks`` are :func:`scan_photos`'s.

    Errors: DataError as that function, and where two photos share a label file or none has one.
    """
    _check_pairs(root, pairs, notes)
    sizes = scan_photos([photo for photo, _ in pairs], notes, **looks)
    return [(*pair, size) for pair, size in zip(pairs, sizes, strict=True) if size is not None]


def _check_pairs(root: Path, pairs: list[Pair], notes: Notes) -> None:
    """Each label file belongs to one photo, and there is one at all."""
    if not pairs:
        raise DataError(f"{root}: no photos")
    owner: dict[Path, Path] = {}
    for photo, label in pairs:
        other = owner.setdefault(label, photo)
        if other != photo and label.is_file():
            with notes.refusals():
                raise DataError(f"{label}: the labels of two photos, {other} and {photo}")
    if not any(label.is_file() for _, label in pairs):
        if not any(photo.exists() for photo, _ in pairs):
            raise DataError(
                f"none of {len(pairs)} photos is there; the first would be {pairs[0][0]}"
            )
        raise DataError(
            f"none of {len(pairs)} photos has a label file; the first was looked for at "
            f"{pairs[0][1]}; pass labels= (--labels) to say where they lie"
        )
    for folder in {label.parent for label in owner}:
        for file in sorted(folder.glob("*.txt")):
            if file not in owner and file.name != "classes.txt":
                notes.add("label file without photo", str(file))


def read_lines(label: Path, notes: Notes) -> Iterator[tuple[str, list[str]]]:
    """The rows of a label file that are not blank: where each stands, and its columns.

    Notes a file that is missing, or has no such row.
    """
    try:
        lines = label.read_text(encoding="utf-8-sig").splitlines()
    except FileNotFoundError:
        notes.add("photo without label file", str(label))
        return
    except (OSError, UnicodeError) as error:
        with notes.refusals():
            raise DataError(f"{label}: {error}") from error
        return
    rows = [(f"{label}: row {i}", line.split()) for i, line in enumerate(lines, 1) if line.strip()]
    if not rows:
        notes.add("empty label file", str(label))
    yield from rows
