"""One store of a campaign, from its first start to its last check: load, faults, checks."""

import random
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from keelog.bench.node_process import await_workers
from keelog.bench.queue_checks import verify_deep
from keelog.client.client import Client, connect
from keelog.client.results import NodeStatus
from node.runtime.settings import ASYNC_FLUSH, SYNC_FLUSH, load_settings
from protocol.errors import MqError
from protocol.names import KEELOG_DIR
from tests.soak.campaign.check import Checker, Found
from tests.soak.campaign.files import (
    bells,
    copy_own_files,
    file_at_rest,
    file_while_running,
    move_away,
    stage_to_the_brim,
)
from tests.soak.campaign.injection import Injector
from tests.soak.campaign.kinds import (
    LARGE_TOPIC,
    descriptors,
    exception,
    hang,
    http_exception,
    is_alive,
    kill,
    memory,
    stop,
)
from tests.soak.campaign.load import TRAFFIC, Load
from tests.soak.campaign.node import CampaignNode, Refusal, pairs_of, tracebacks
from tests.soak.campaign.results import Round
from tests.soak.campaign.scene import Deed, NoVictim, Scene, SmallDisk
from tests.soak.campaign.watch import READY_BUT_FAILING_S_MAX, Watch, answers_http
from tests.soak.check import check_files, check_order, check_outcomes, read_image

KINDS: Mapping[str, Callable[[Scene], Deed]] = {
    "exception": exception,
    "http": http_exception,
    "hang": hang,
    "stop": stop,
    "file": file_while_running,
    "file-at-rest": file_at_rest,
    "stage": stage_to_the_brim,
    "move": move_away,
    "descriptors": descriptors,
    "memory": memory,
    "kill": kill,
}
WEIGHTS: Mapping[str, int] = {
    "exception": 5, "http": 1, "hang": 2, "stop": 2, "file": 4, "file-at-rest": 1,
    "stage": 1, "move": 1, "descriptors": 2, "memory": 2, "kill": 3,
}  # fmt: skip
"""How often each is drawn: seldom where the whole node starts again, which takes seconds."""
NEEDS_A_SMALL_DISK = frozenset({"stage"})
DISK_MIB = 192
OWN_PART_MAX = 0.4
"""Of a small disk. A store that takes more ends: the room is for stages."""
RECOVER_S_MAX = 90.0
WHOLE_EACH = 50
"""After so many rounds everything is asked for, not a sample."""
_RESTARTS_MAX = 3
_STARTS_MAX = 5
_LOOK_S = 0.15
_OLDER_CHANCE = 0.3
_EVERY_PROCESS = 1_000
"""Ends are not counted over a start of the whole node."""
_TALK_CHARS = 6_000


class Life:
    """A node on a new store, under load. A fault found ends it; `keep` it then, else `finish`."""

    def __init__(self, folder: Path, seed: int, other: Path, small: bool) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.rounds = 0
        rnd = random.Random(seed)
        disk = SmallDisk(folder, DISK_MIB) if small else None
        root = (disk.place if disk else folder) / "store"
        pairs = pairs_of(small, rnd.choice((ASYNC_FLUSH, SYNC_FLUSH)))
        injector = Injector(folder / "injector")
        node = CampaignNode(root, folder / "node.log", pairs, injector.env)
        self.scene = Scene(node, rnd, injector, folder / "older", other, disk)
        self.node = node
        self._checker = Checker(seed, TRAFFIC)
        self._watch: Watch | None = None
        self._load: Load | None = None
        self._client: Client | None = None
        self._planted: set[Path] = set()
        """Own files that are not the store's: a start may refuse one in a later round."""
        self._late: set[int] = set()
        """Processes with an exception under way in a thread that waits."""

    def start(self) -> None:
        """The first start, and the load. Raises MqError."""
        self.node.begin()
        self.node.await_ready()
        self._client = connect(self.node.endpoint, timeout=5.0)
        for topic in TRAFFIC.topics:
            self._client.create_topic(topic, TRAFFIC.queues)
        self._watch = Watch(self.node.endpoint, self.node.http)
        self._load = Load(self.folder, self.node.endpoint, self._watch)
        copy_own_files(self.node.root, self.scene.older)

    @property
    def is_full(self) -> bool:
        """Whether its small disk has no room for stages any more."""
        if self.scene.disk is None:
            return False
        usage = shutil.disk_usage(self.scene.disk.place)
        return usage.used > OWN_PART_MAX * usage.total

    # -- a round -------------------------------------------------------------------------------

    def draw(self, kinds: Sequence[str]) -> str:
        """One of them by chance, of those that can be done here."""
        small = self.scene.disk is not None
        able = [kind for kind in kinds if small or kind not in NEEDS_A_SMALL_DISK]
        return self.scene.rnd.choices(able, [WEIGHTS[kind] for kind in able])[0]

    def round(self, kind: str, one: Round) -> None:
        """One fault, what becomes of it, and the checks."""
        began = time.monotonic()
        self.rounds += 1
        said = self.node.mark = self.node.talk_bytes()
        starts, ends = self.node.starts, self._ends()
        try:
            deed = KINDS[kind](self.scene)
            one.what = deed.what
            self._planted.update(deed.planted)
            if deed.is_late and deed.victim is not None:
                self._late.add(deed.victim)
        except NoVictim as why:
            deed = Deed(str(why))
            one.what, one.done = deed.what, False
        self._recover(deed, one)
        if not one.faults:
            one.restarts = self._ends() - ends if self.node.starts == starts else 0
            ended = one.restarts if self.node.starts == starts else _EVERY_PROCESS
            self._check(one, whole=self.rounds % WHOLE_EACH == 0)
            if not deed.is_http:
                self._check_talk(one, said, ended)
        self._check_watch(one)
        if not one.faults and self.scene.rnd.random() < _OLDER_CHANCE:
            copy_own_files(self.node.root, self.scene.older)
        one.seconds = time.monotonic() - began

    def _ends(self) -> int:
        """How often processes were started again in this start of the node."""
        status = self.node.status()
        return sum(row.restarts or 0 for row in status.processes) if status else 0

    def _recover(self, deed: Deed, one: Round) -> None:
        refusal = self._hold(deed)
        began = time.monotonic()
        if deed.restart:
            self._note(refusal, one)
            self._restart(deed, one)
        else:
            deed.undo()
        self._await_health(deed, one)
        one.recovery_s = time.monotonic() - began

    def _hold(self, deed: Deed) -> Refusal | None:
        """The fault stays for its time, or until the node names a cause."""
        deadline = time.monotonic() + deed.hold_s
        while time.monotonic() < deadline:
            if deed.until_refused:
                refusal = self.node.refusal(self.node.status())
                if refusal is not None:
                    return refusal
            time.sleep(_LOOK_S)
        return None

    @staticmethod
    def _note(refusal: Refusal | None, one: Round) -> None:
        if refusal is not None and refusal.cause:
            one.refused.append(refusal.cause[:200])

    def _restart(self, deed: Deed, one: Round) -> None:
        """As an operator does when the cause is mended, or the file that is named is removed."""
        late = self.node.stop_or_kill()
        # A process that hangs is killed at the end of a stop, which then ends with 1.
        if late and not deed.must_end:
            one.faults.append(f"the node {late}")
        deed.undo()
        for _ in range(_STARTS_MAX):
            self.node.begin()
            if self.node.await_start():
                return
            refusal = self.node.refusal(None)
            self._note(refusal, one)
            self.node.kill()
            cause = "" if refusal is None else refusal.cause
            if not self._unplant(cause, one):
                break
        one.faults.append(f"the node does not start: {self.node.said()[-500:]}")

    def _unplant(self, said: str, one: Round) -> bool:
        """Removes the planted files of ours that a text names; whether there were any."""
        ours = self.node.root / KEELOG_DIR
        named = {path for path in self._planted if str(path) in said and ours in path.parents}
        for path in named:
            one.refused.append(f"named: {path.name}")
            path.unlink(missing_ok=True)
        self._planted -= named
        return bool(named)

    def _await_health(self, deed: Deed, one: Round) -> None:
        deadline = time.monotonic() + RECOVER_S_MAX
        mended = 0
        status: NodeStatus | None = None
        while time.monotonic() < deadline and not one.faults:
            asked = time.monotonic()
            status = self.node.status()
            refusal = self.node.refusal(status)
            if refusal is not None and mended == _RESTARTS_MAX:
                one.faults.append(f"{mended} restarts do not help: {refusal.cause}")
            elif refusal is not None:
                mended += 1
                self._note(refusal, one)
                self._restart(deed, one)
                deadline = time.monotonic() + RECOVER_S_MAX
            elif self._is_well(status, deed, asked):
                return
            time.sleep(_LOOK_S)
        if not one.faults:
            states = [(row.role, row.state) for row in status.processes] if status else "no answer"
            one.faults.append(
                f"not well within {RECOVER_S_MAX:.0f} s, and no cause is named: {states},"
                f" ready {status.ready if status else None}{_fate(deed.victim)}"
            )

    def _is_well(self, status: NodeStatus | None, deed: Deed, asked: float) -> bool:
        """Everything runs, and something that was sent since has been acknowledged."""
        if status is None or not status.ready:
            return False
        if any(row.state != "running" for row in status.processes):
            return False
        if deed.victim is not None:
            lives = is_alive(deed.victim)
            if deed.must_end and lives:
                return False
            if deed.is_http and not answers_http(self.node.http):
                return False
            if not lives and any(row.pid == deed.victim for row in status.processes):
                return False  # its end has not been noticed yet
        return self._acknowledges_since(asked)

    def _acknowledges_since(self, moment: float) -> bool:
        assert self._watch is not None
        deadline = time.monotonic() + 2.0
        while time.monotonic() < deadline:
            if self._watch.witness.last_success > moment:
                return True
            time.sleep(0.03)
        return False

    # -- checks --------------------------------------------------------------------------------

    def _check(self, one: Round, whole: bool) -> None:
        assert self._load is not None
        found = self._ask(whole)
        if found.refused:
            one.refused += found.refusals
            self._restart(Deed(""), one)
            found = self._ask(whole=True)
        one.checked += found.checked
        one.lost += found.lost + found.wrong
        one.faults += found.faults
        if found.refused:
            one.faults.append(f"{found.refused} messages stay refused: {found.refusals}")

    def _ask(self, whole: bool) -> Found:
        assert self._load is not None
        assert self._client is not None
        return self._checker.check(self._client, self._load.told(), whole)

    def _check_talk(self, one: Round, since: int, ends: int) -> None:
        """Each exception ends a process; one that came late may go with another in its end."""
        count = tracebacks(self.node.talk_since(since))
        late = {pid for pid in self._late if not is_alive(pid)}
        self._late -= late
        if count > ends + len(late):
            one.faults.append(f"{count} exceptions that nobody caught, {ends} processes ended")

    def _check_watch(self, one: Round) -> None:
        assert self._watch is not None
        assert self._load is not None
        one.ready_but_failing_s = self._watch.witness.take_longest()
        if one.ready_but_failing_s > READY_BUT_FAILING_S_MAX:
            one.faults.append(f"ready for {one.ready_but_failing_s:.1f} s while every send failed")
        if self._watch.http_failed_s > READY_BUT_FAILING_S_MAX:
            one.faults.append(f"no answer over HTTP for {self._watch.http_failed_s:.0f} s")
        one.faults += self._load.failures

    # -- the end -------------------------------------------------------------------------------

    def finish(self, one: Round) -> None:
        """Everything is asked for once more, then the store is looked at as it lies there."""
        began = time.monotonic()
        assert self._load is not None
        assert self._client is not None
        self._load.stop()
        self._check(one, whole=True)
        with suppress(MqError):
            await_workers(self._client)
        if late := self.node.stop_or_kill():
            one.faults.append(f"the node {late}")
        settings, root = load_settings(self.node.pairs), self.node.root
        self._unplant(verify_deep(root)[1], one)
        one.faults += check_files(root, settings)
        image = read_image(root, settings, TRAFFIC, others=(LARGE_TOPIC,))
        tally = check_outcomes(image, self._load.told(), [], promised=False, is_over=True)
        one.faults += [*check_order(image, TRAFFIC), *tally.faults]
        one.lost += tally.lost + tally.changed
        code, said = verify_deep(root)
        if code:
            one.faults.append(f"store verify --deep ended with {code}: {said}")
        one.seconds = time.monotonic() - began

    def talk(self) -> str:
        """The end of what the node said."""
        return self.node.talk_since(max(0, self.node.talk_bytes() - _TALK_CHARS))

    def close(self, keep: bool) -> None:
        """Ends everything; what lies in memory is copied when it is to be kept."""
        if self._load is not None:
            self._load.stop()
        if self._watch is not None:
            self._watch.close()
        self.node.close()
        if self._client is not None:
            self._client.close()
        disk = self.scene.disk
        if disk is not None:
            disk.give_back()
            if keep:
                shutil.copytree(disk.place, self.folder / "found", ignore=bells)
            disk.close()
        if not keep:
            shutil.rmtree(self.folder, ignore_errors=True)


def _fate(victim: int | None) -> str:
    if victim is None:
        return ""
    return f", process {victim} {'lives' if is_alive(victim) else 'has ended'}"
