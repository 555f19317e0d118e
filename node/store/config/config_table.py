"""One table of `config/` in the memory of the process that owns the file; a thread saves it.

RocketMQ's ConfigManager: the version before a save stays as `.bak`, which counts where the file
cannot be read. Fields that we do not know stay as they are.
"""

import json
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from node.runtime import disk
from node.runtime.event_log import fields
from node.runtime.store_paths import OFFSETS_FILE_BYTES_MAX, read_bounded
from protocol.errors import StoreDamaged
from protocol.remoting.java_json import parse_java_json

log = logging.getLogger("keelog.config")

SAVE_EVERY_S = 1.0
_NEXT = ",\n\t\t\t"


class ConfigTable:
    """All methods are for one thread. `now_ms` returns the wall clock.

    `entries` is the field `name` of the file; its values are objects if `of_objects`. Replace an
    entry, never change it, as a save takes a copy of the table alone; and call `touch` after it.
    """

    def __init__(
        self, path: Path, name: str, now_ms: Callable[[], int], of_objects: bool = True
    ) -> None:
        self.path = path
        self._name = name
        self._of_objects = of_objects
        self._now_ms = now_ms
        self._saver = ThreadPoolExecutor(1, "keelog-config")
        self._saving: Future[None] | None = None
        self._save_at = 0.0
        self._is_dirty = False
        self._texts: dict[str, tuple[Any, str]] = {}
        """By key: the entry as it was saved last, and its text. The thread's alone."""
        self._read_mark = 0
        """The file's time of change when it was last read by `reload`."""
        self.damage: StoreDamaged | None = None
        """Why neither the file nor its copy could be read."""
        self._document: dict[str, Any] = {}
        self._load()
        self.entries: dict[str, Any] = self._document.pop(name, {})

    @property
    def version(self) -> dict[str, int]:
        """The version of the table, which rises with each save."""
        return dict(self._document.get("dataVersion") or {})

    def touch(self) -> None:
        """Has the table saved, within about SAVE_EVERY_S."""
        self._is_dirty = True

    def check_readable(self) -> None:
        """Raises StoreDamaged for a file that could not be read: it must not be overwritten."""
        if self.damage is not None:
            raise self.damage

    def turn(self, now: float) -> None:
        """Begins a save when one is due, and takes the result of the last. Raises StoreMoved."""
        if self._saving is not None:
            if not self._saving.done():
                return
            self._collect()
        if self._is_dirty and now >= self._save_at:
            self._save_at = now + SAVE_EVERY_S
            self._begin()

    def save(self) -> None:
        """Saves what is not saved, and waits for it. Raises StoreMoved."""
        if self._saving is not None:
            self._collect()
        if self._is_dirty:
            self._begin()
            self._collect()

    def close(self, keeps: bool = True) -> None:
        """Saves what is not saved, unless the file is another process's; ends the thread."""
        if keeps:
            self.save()
        self._saver.shutdown()

    def reload(self) -> bool:
        """For who does not own the file: reads it again where it is another one.

        Entries that are not in it stay. A file that cannot be read changes nothing.
        """
        with suppress(FileNotFoundError):
            mark = self.path.stat().st_mtime_ns
            if mark != self._read_mark:
                self._read_mark = mark
                before = self.entries
                self._load()
                self.entries = {**before, **self._document.pop(self._name, {})}
                return True
        return False

    def _begin(self) -> None:
        self._is_dirty = False
        version = dict(self._document.get("dataVersion") or {"stateVersion": 0})
        version["counter"] = int(version.get("counter") or 0) + 1
        version["timestamp"] = self._now_ms()
        self._document["dataVersion"] = version
        self._saving = self._saver.submit(self._save, dict(self._document), dict(self.entries))

    def _save(self, document: Mapping[str, Any], entries: Mapping[str, Any]) -> None:
        """In the thread. Encodes only what has changed since the last save: the encoder for
        people's eyes takes a microsecond for each number, and holds up the process' other threads.
        """
        known, self._texts = self._texts, {}
        for key, entry in sorted(entries.items()):
            text = known.get(key)
            if text is None or text[0] is not entry:
                text = entry, f"\t\t{_encoded(key)}: {_encoded_entry(entry)}"
            self._texts[key] = text
        table = ",\n".join(text for _, text in self._texts.values())
        parts = {name: _encoded(value, "\t") for name, value in document.items()}
        parts[self._name] = f"{{\n{table}\n\t}}" if table else "{}"
        lines = ",\n".join(f"\t{_encoded(name)}: {text}" for name, text in sorted(parts.items()))
        disk.write_with_backup(self.path, f"{{\n{lines}\n}}".encode())

    def _collect(self) -> None:
        """Waits for the save. Without room on the disk it is tried again."""
        assert self._saving is not None
        try:
            self._saving.result()
        except OSError as error:
            self._is_dirty = True
            log.warning("not saved", extra=fields(file=self.path, why=error.strerror))
        finally:
            self._saving = None

    def _load(self) -> None:
        for path in (self.path, disk.backup_of(self.path)):
            try:
                self._document = self._read(path)
            except FileNotFoundError:
                continue
            except StoreDamaged as damage:
                log.warning("cannot be read", extra=fields(file=path, why=damage.found))
                self.damage = self.damage or damage
                continue
            self.damage = None
            break

    def _read(self, path: Path) -> dict[str, Any]:
        """Raises StoreDamaged for what is not such a table, OSError."""
        hint = f"restore it from {disk.backup_of(self.path).name}, or remove it"
        text = read_bounded(path, OFFSETS_FILE_BYTES_MAX).decode("utf-8", "replace")
        try:
            document = parse_java_json(text) if text.strip() else {}
        except (ValueError, RecursionError) as error:
            raise StoreDamaged(str(path), 0, f"is not JSON: {error}", hint) from None
        table = document.get(self._name, {}) if isinstance(document, dict) else None
        if not isinstance(table, dict) or (
            self._of_objects and not all(isinstance(one, dict) for one in table.values())
        ):
            raise StoreDamaged(str(path), 0, f"has no {self._name}", hint)
        return {**document, self._name: table}


def _encoded(value: Any, indent: str = "") -> str:
    """As Java writes it, with tabs; `indent` begins each further line."""
    text = json.dumps(value, indent="\t", sort_keys=True, ensure_ascii=False)
    return text.replace("\n", f"\n{indent}")


def _encoded_entry(entry: Any) -> str:
    """As `_encoded`, within the table; offsets in a tenth of the time."""
    is_flat = isinstance(entry, dict) and all(type(value) is int for value in entry.values())
    if not entry or not is_flat:
        return _encoded(entry, "\t\t")
    inner = json.dumps(entry, sort_keys=True, ensure_ascii=False, separators=(_NEXT, ": "))
    return f"{{\n\t\t\t{inner[1:-1]}\n\t\t}}"
