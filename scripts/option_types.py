"""Types of the options that several scripts take: bad values are refused before any work."""

import argparse
import math
from collections.abc import Callable
from pathlib import Path


def whole_number(text: str) -> int:
    """A whole number above 0."""
    return int(_above_0(text, int, "whole number"))


def real_number(text: str) -> float:
    """A finite number above 0."""
    return _above_0(text, float, "number")


def _above_0(text: str, read: Callable[[str], float], what: str) -> float:
    try:
        value = read(text)
    except ValueError:
        value = 0
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no {what} above 0")
    return value


def old_folder(text: str) -> Path:
    """A folder that is there."""
    path = Path(text)
    if not path.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {text}; make it first")
    return path


def made_folder(text: str) -> Path:
    """A folder, which is made if there is none."""
    path = Path(text)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"cannot make {text}: {error.strerror}") from None
    return path


def old_file(text: str) -> Path:
    """A file that is there."""
    path = Path(text)
    if not path.is_file():
        raise argparse.ArgumentTypeError(f"there is no file {text}")
    return path


def new_file(text: str) -> Path:
    """A file that may be written: its folder is there."""
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is a folder, not a file")
    old_folder(str(path.parent))
    return path
