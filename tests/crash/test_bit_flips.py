"""Single bits of a real store flipped: found by `verify --deep` or never read, and never believed.

Reads of the flipped store answer what they did before, or refuse, or miss a message that `verify`
then finds; they never answer another message than the one asked for.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from node.store.opening import open_store
from node.store.verify.verify import VerifyReport, verify
from protocol.errors import StoreDamaged
from protocol.ids import Queue
from tests.crash.flipped_store import (
    SETTINGS,
    Region,
    Seen,
    flipped,
    keys_of,
    read_all,
    records_of,
    regions,
    write_store,
)

WEIGHTS = {
    "record": 45,
    "blank": 2,
    "free log": 4,
    "unit": 15,
    "free unit": 3,
    "index header": 4,
    "slot": 8,
    "entry": 16,
    "free entry": 3,
}
"""How often each kind of byte is hit, in percent."""
SHORT, LONG, LONG_PARTS = 150, 10_000, 10
SEED = 20_261_121
TIMES = 3


class Flips:
    """Flips bits of one store, and holds what follows against what it answered before."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.regions: dict[str, list[Region]] = {}
        for region in regions(root):
            if region.start < region.end:
                self.regions.setdefault(region.kind, []).append(region)
        with open_store(root, SETTINGS) as store:
            records = records_of(store)
            self.queues: list[Queue] = store.queues()
        times = sorted({record.head.store_timestamp for record in records})
        self.times = times[:: -(-len(times) // TIMES)]
        self.keys = sorted(frozenset().union(*map(keys_of, records)))
        self.before = read_all(root, self.queues, self.keys, self.times)
        assert None not in self.before.messages.values()
        self.report = verify(root, deep=True, settings=SETTINGS)
        assert not self.report.findings
        assert self.report.records == len(records) > 0
        self.totals: Counter[str] = Counter()

    def run(self, count: int, seed: int) -> Counter[str]:
        """Tries `count` random flips and answers the totals."""
        rnd = random.Random(seed)
        kinds = rnd.choices(list(WEIGHTS), list(WEIGHTS.values()), k=count)
        for kind in kinds:
            region = _any_byte_of(self.regions[kind], rnd)
            position, bit = rnd.randrange(region.start, region.end), rnd.randrange(8)
            self.flip(region, position, bit, rnd)
        return self.totals

    def flip(self, region: Region, position: int, bit: int, rnd: random.Random) -> None:
        """One flip: verified, read, and put back."""
        spot = f"{region.kind}: {region.path}, byte {position}, bit {bit}"
        with flipped(region.path, position, bit):
            report = verify(self.root, deep=True, settings=SETTINGS)
            self.totals["flips"] += 1
            if region.unused and report == self.report:
                self._is_harmless(spot)
                self.totals[f"harmless: {region.unused}"] += 1
                return
            assert not report.ok, f"not found, {spot}"
            self._note_kinds(report)
            self._reads(region, spot, rnd)

    def _note_kinds(self, report: VerifyReport) -> None:
        for kind in {one.kind for one in report.findings if one.severity == "error"}:
            self.totals[f"found: {kind}"] += 1

    def _is_harmless(self, spot: str) -> None:
        seen = read_all(self.root, self.queues, self.keys, self.times)
        assert seen == self.before, f"changes what is answered, {spot}"

    def _reads(self, region: Region, spot: str, rnd: random.Random) -> None:
        """What these bytes are about is read by all ways; of the rest something."""
        queues = region.queues or {rnd.choice(self.queues)}
        keys = set(region.keys or self.keys)
        try:
            seen = read_all(self.root, queues, keys, self.times)
        except StoreDamaged:
            self.totals["reads: the store was refused"] += 1
            return
        self._holds(seen, spot)
        expected = {asked for asked in self.before.messages if asked.queue in queues}
        refused = sum(raw is None for raw in seen.messages.values())
        missed = len(expected - seen.messages.keys())
        short = sum(len(seen.found[key] or ()) < len(self.before.found[key] or ()) for key in keys)
        self.totals["reads: messages refused"] += refused
        self.totals["reads: messages missed"] += missed
        self.totals["reads: look-ups by key refused or short"] += short
        # A pull without tags says of every message that it is there or damaged.
        assert not [asked for asked in expected - seen.messages.keys() if "None" in asked.way], spot

    def _holds(self, seen: Seen, spot: str) -> None:
        for asked, raw in seen.messages.items():
            assert raw is None or raw == self.before.messages.get(asked), (asked, spot)
        for key, records in seen.found.items():
            assert set(records or ()) <= set(self.before.found[key] or ()), (key, spot)
        for place, offset in seen.times.items():
            true = self.before.times[place]
            # A damaged message whose time decides counts as the one that was looked for.
            assert offset in (None, true) or offset + 1 == true, (place, offset, spot)


def _any_byte_of(choices: list[Region], rnd: random.Random) -> Region:
    return rnd.choices(choices, [region.end - region.start for region in choices])[0]


@pytest.fixture(scope="module")
def flips(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flips]:
    root = tmp_path_factory.mktemp("flips") / "store"
    write_store(root)
    made = Flips(root)
    yield made
    assert verify(root, deep=True, settings=SETTINGS) == made.report


Record = Callable[[str, object], None]


def tell(totals: Counter[str], record_property: Record) -> None:
    """The totals in the summary of the test run; and it is always none that was served wrong."""
    for name, number in sorted(totals.items()):
        record_property(f"bit flips, {name}", number)
    record_property("bit flips, served as a good message", 0)


@pytest.mark.process
def test_some_flipped_bits_are_found_or_never_read(flips: Flips, record_property: Record) -> None:
    flips.totals = Counter()
    totals = flips.run(SHORT, SEED)
    assert totals["flips"] == SHORT
    tell(totals, record_property)


@pytest.mark.faults
@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", range(LONG_PARTS))
def test_ten_thousand_flipped_bits_are_found_or_never_read(
    flips: Flips, part: int, record_property: Record
) -> None:
    flips.totals = Counter()
    totals = flips.run(LONG // LONG_PARTS, SEED + 1 + part)
    assert totals["flips"] == LONG // LONG_PARTS
    tell(totals, record_property)
