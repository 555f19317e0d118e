"""What a fault is done to, what it was, and how it is taken back."""

import random
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.soak.campaign.injection import Injector
from tests.soak.campaign.node import CampaignNode


def nothing() -> None:
    """There is nothing to take back."""


@dataclass(slots=True)
class Deed:
    """One fault as it was done."""

    what: str
    victim: int | None = None
    """The process that it was done to."""
    must_end: bool = False
    """All is well only when the victim is gone: it would never do anything more."""
    is_late: bool = False
    """The victim's thread still waits: it runs into the exception when it wakes up."""
    is_http: bool = False
    """The HTTP end may start again by itself: it is well when it answers."""
    hold_s: float = 0.0
    """So long it stays, then `undo` is called."""
    until_refused: bool = False
    """It ends earlier when the node names a cause."""
    undo: Callable[[], None] = nothing
    """Harmless when called twice."""
    restart: bool = False
    """`undo` is for a node at rest: it is stopped before, and started after."""
    planted: list[Path] = field(default_factory=list)
    """Files that an operator may remove when the node refuses them."""


class SmallDisk:
    """A tmpfs that can be taken away and comes back as it was."""

    def __init__(self, folder: Path, mib: int) -> None:
        self.place, self._hold = folder / "disk", folder / "hold"
        self.place.mkdir()
        self._hold.mkdir()
        _run(["mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", str(self._hold)])
        self.give_back()

    def take_away(self) -> None:
        """As `umount -l`: who has files open keeps them."""
        _run(["umount", "-l", str(self.place)])

    def give_back(self) -> None:
        """It is there again. Harmless when it is there."""
        if not self.place.is_mount():
            _run(["mount", "--bind", str(self._hold), str(self.place)])

    def close(self) -> None:
        """Gone for good."""
        for place in (self.place, self._hold):
            if place.is_mount():
                subprocess.run(["umount", "-l", str(place)], check=False)


def _run(command: list[str]) -> None:
    subprocess.run(command, capture_output=True, check=True)


@dataclass(slots=True)
class Scene:
    """What a kind of fault has at hand. `older` and `other` are copies of stores' own files."""

    node: CampaignNode
    rnd: random.Random
    injector: Injector
    older: Path
    other: Path
    disk: SmallDisk | None = None

    def pick(self, *roles: str) -> tuple[str, int]:
        """A process of one of these roles, by chance; its role and pid. Raises NoVictim."""
        found = [one for one in sorted(self.node.victims().items()) if one[0] in roles]
        if not found:
            raise NoVictim(f"none of {roles} runs")
        return self.rnd.choice(found)


class NoVictim(Exception):
    """The node has no such process, file or place now: nothing was done."""
