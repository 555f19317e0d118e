"""Faults of what lies on the disk: own files, a disk full of stages, a directory that is gone."""

import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from keelog.client.send.staging import StageClient
from protocol.errors import MqError
from protocol.names import KEELOG_DIR
from protocol.record.encode import NewMessage, encode_message
from tests.soak.campaign.node import STOP_S_MAX
from tests.soak.campaign.scene import Deed, NoVictim, Scene

WAYS = ("emptied", "random", "older", "foreign")
_BESIDE = ("checkpoint", "abort", "config/topics.json.bak")
_NOT_OURS = ("staging", "quarantine", "trash")
_RANDOM_BYTES_MAX = 4096
_AWAY_S = 8.0
_STAGE_S_MAX = 20.0
_STAGE_BODY_BYTES = 60_000
_STAGE_RECORDS = 16
_STAGE_QUERY = "campaign"
_BRIM = 0.99


def bells(_folder: str, names: list[str]) -> list[str]:
    """What cannot be copied, for `copytree`."""
    return [name for name in names if name.endswith(".bell")]


def own_files(root: Path) -> list[str]:
    """The files of ours in a store, and those of RocketMQ's that nothing is lost without."""
    own = root / KEELOG_DIR
    found = [path for path in own.rglob("*") if path.is_file()]
    names = [str(path.relative_to(root)) for path in found]
    kept = [name for name in names if not set(Path(name).parts) & set(_NOT_OURS)]
    return sorted([*kept, *(name for name in _BESIDE if (root / name).is_file())])


def copy_own_files(root: Path, place: Path) -> None:
    """A version of them that will be an older one. A file may go meanwhile."""
    for name in own_files(root):
        copy = place / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            shutil.copyfile(root / name, copy)


def file_while_running(scene: Scene) -> Deed:
    """One own file becomes another while the node runs."""
    return _plant(scene, "while it runs")


def file_at_rest(scene: Scene) -> Deed:
    """The same between the end of a node and its next start."""
    if scene.rnd.random() < 0.5:
        scene.node.stop_or_kill()
        when = "after a stop"
    else:
        scene.node.kill()
        when = "after a kill"
    try:
        return _plant(scene, when)
    finally:
        scene.node.begin()


def _plant(scene: Scene, when: str) -> Deed:
    name = scene.rnd.choice(own_files(scene.node.root))
    there = {"older": (scene.older / name).is_file(), "foreign": (scene.other / name).is_file()}
    way = scene.rnd.choice([way for way in WAYS if there.get(way, True)])
    data = _planted(scene, name, way)
    target = scene.node.root / name
    in_place = scene.rnd.random() < 0.5
    with suppress(FileNotFoundError):  # one that the node has just removed comes back by rename
        if in_place:
            with target.open("r+b") as file:
                file.truncate(len(data))
                file.write(data)
            return Deed(f"{name} {way} in place {when}", planted=[target])
    fresh = target.with_name(f"{target.name}.planted")
    fresh.write_bytes(data)
    fresh.rename(target)
    return Deed(f"{name} {way} by rename {when}", planted=[target])


def _planted(scene: Scene, name: str, way: str) -> bytes:
    """What the file is to hold. Raises NoVictim where there is no such version."""
    if way == "emptied":
        return b""
    try:
        if way == "random":
            size = (scene.node.root / name).stat().st_size
            return scene.rnd.randbytes(min(size or 100, _RANDOM_BYTES_MAX))
        return ((scene.older if way == "older" else scene.other) / name).read_bytes()
    except FileNotFoundError:
        raise NoVictim(f"there is no {way} version of {name}") from None


def stage_to_the_brim(scene: Scene) -> Deed:
    """Somebody stages until it is refused, and goes away. Raises NoVictim on a large disk."""
    if scene.disk is None:
        raise NoVictim("the store's disk is too large to be filled")
    batch = scene.rnd.randrange(1 << 30)
    frames, why = _stage(scene, batch)
    # As an operator would: what nobody publishes is dropped.

    def drop() -> None:
        with suppress(MqError), StageClient(scene.node.endpoint, STOP_S_MAX) as client:
            client.unstage(_STAGE_QUERY, batch)

    return Deed(f"{frames} frames staged, then {why}", hold_s=3.0, undo=drop)


def _stage(scene: Scene, batch: int) -> tuple[int, str]:
    """How many frames went, and why no more."""
    frames = 0
    deadline = time.monotonic() + _STAGE_S_MAX
    try:
        with StageClient(scene.node.endpoint, 5.0) as client:
            stage = client.stage(_STAGE_QUERY, batch, "a")
            while time.monotonic() < deadline and _used(scene.node.root) < _BRIM:
                stage.put(_records(scene, frames), _STAGE_RECORDS)
                frames += 1
            stage.finish()
    except MqError as error:
        return frames, f"{type(error).__name__}: {error.reason}"[:120]
    return frames, f"the disk was {_used(scene.node.root):.0%} full"


def _records(scene: Scene, frame: int) -> bytes:
    records = []
    for number in range(_STAGE_RECORDS):
        key = f"{frame * _STAGE_RECORDS + number:032d}"
        body = scene.rnd.randbytes(_STAGE_BODY_BYTES)
        message = NewMessage(topic="campaign-staged", queue_id=0, body=body, unique_key=key)
        records.append(encode_message(message, crc=True))
    return b"".join(records)


def _used(place: Path) -> float:
    """The part of the disk that is taken; 1.0 when nobody can say."""
    try:
        space = os.statvfs(place)
    except OSError:
        return 1.0
    return 1.0 - space.f_bavail / space.f_blocks


def move_away(scene: Scene) -> Deed:
    """The store's directory goes: to another name, or with its disk; something may take its place.

    It comes back before the next start, or is served where it is then.
    """
    root = scene.node.root
    ways: list[Callable[[Scene], Deed]] = [_renamed, _served_elsewhere, _emptied, _exchanged]
    if scene.disk is not None:
        ways.append(_unmounted)
    assert root.is_dir(), "the store is not where it should be"
    return scene.rnd.choice(ways)(scene)


def _away(root: Path) -> Path:
    place = root.with_name(f"{root.name}.moved")
    root.rename(place)
    return place


def _back(root: Path, place: Path) -> Callable[[], None]:
    """What brings it back; what stands there meanwhile is put aside."""

    def undo() -> None:
        if not place.exists():
            return
        if root.exists():
            aside = root.with_name(f"{root.name}.aside")
            shutil.rmtree(aside, ignore_errors=True)
            root.rename(aside)
        place.rename(root)

    return undo


def _gone(what: str, undo: Callable[[], None]) -> Deed:
    return Deed(what, hold_s=_AWAY_S, until_refused=True, undo=undo, restart=True)


def _renamed(scene: Scene) -> Deed:
    root = scene.node.root
    return _gone("directory moved away and back", _back(root, _away(root)))


def _served_elsewhere(scene: Scene) -> Deed:
    root = scene.node.root
    turn = int(root.name.partition("-")[2] or 0) + 1
    place = root.with_name(f"store-{turn}")
    root.rename(place)

    def serve_there() -> None:
        scene.node.move_to(place)

    return _gone("directory moved and served at its new place", serve_there)


def _emptied(scene: Scene) -> Deed:
    root = scene.node.root
    place = _away(root)
    root.mkdir(exist_ok=True)
    return _gone("directory replaced by an empty one", _back(root, place))


def _exchanged(scene: Scene) -> Deed:
    root = scene.node.root
    place = _away(root)
    # A node that is none of ours to trust may have made a folder there already.
    shutil.copytree(scene.other, root, ignore=bells, dirs_exist_ok=True)
    return _gone("directory replaced by another store", _back(root, place))


def _unmounted(scene: Scene) -> Deed:
    assert scene.disk is not None
    scene.disk.take_away()
    return _gone("disk unmounted (-l)", scene.disk.give_back)
