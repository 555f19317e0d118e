"""Requests whose login is spoiled, by the thousand: none gets more than a stranger may get."""

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from keelog.gateway.guard import NO_LOGIN, NOT_PROVED
from keelog.gateway.settings import SEND_EXT
from node.access.users_file import write_users
from node.store.identity.places import create_store
from protocol.access.decision import Action, Entry, parse_resource
from protocol.access.signature import ACCESS_KEY, SIGNATURE, is_signed, signature
from protocol.access.users import AccessList, AccessTable, User, UserStatus, UserType
from protocol.remoting.codes import RequestCode, ResponseCode
from protocol.remoting.frame_reader import FrameReader, frame_head
from protocol.remoting.headers import ONE_WAY, RemotingHeader
from tests.gateway.test_fuzzed_gateway import CODES, VALUES, requests
from tests.support.node import RunningNode
from tests.support.remoting import REMOTING, RemotingPeer, SignedPeer, remoting_place, send_fields

MIB = 1024 * 1024
FRAMES_AT_ONCE = 100
FRAMES_OF_A_CONNECTION = 1_000
SECRETS = {"alice": "secret-of-alice", "root": "secret-of-root", "off": "secret-of-off"}
NAMES = (*SECRETS, "nobody", "", " alice", "ALICE", "alice\0", "User:alice", "a" * 300)
TEXTS = {NO_LOGIN, NOT_PROVED, "User:off is disabled."}
SETTINGS = (REMOTING, "mapped_file_size_commit_log=4194304", "auth_failures_max=1000000")
"""Nobody is late: each request is judged."""
Fields = dict[str, str]


def table() -> AccessTable:
    """Users who may do everything: only the login is in the way."""
    every = Entry(parse_resource("*"), frozenset({Action.ALL}), True)
    users = {
        "alice": User("alice", SECRETS["alice"]),
        "root": User("root", SECRETS["root"], UserType.SUPER),
        "off": User("off", SECRETS["off"], UserType.SUPER, UserStatus.DISABLE),
    }
    return AccessTable(users, {"alice": AccessList((every,))})


def real_requests() -> list[tuple[RemotingHeader, bytes]]:
    """Those that clients of RocketMQ sent."""
    found = []
    for data in requests():
        reader = FrameReader(len(data) + 1)
        reader.room()[: len(data)] = data
        ((header, body),) = reader.received(len(data))
        found.append((header, bytes(body)))
    return found


def spoiled(fields: Fields, body: bytes, old: str, rnd: random.Random) -> tuple[Fields, bytes]:
    """Signed fields with something else in them. `old`: the signature of another request."""
    found, proof = dict(fields), fields[SIGNATURE]
    some = rnd.choice([*found, "added"])
    match rnd.randrange(9):
        case 0:
            del found[rnd.choice((ACCESS_KEY, SIGNATURE))]
        case 1:
            found[ACCESS_KEY] = rnd.choice(NAMES)
        case 2:
            at = rnd.randrange(len(proof))
            found[SIGNATURE] = proof[:at] + rnd.choice("AZaz09+/=~\u00fc\0") + proof[at + 1 :]
        case 3:
            found[SIGNATURE] = rnd.choice(("", old, proof[:-1], proof + "=", proof.lower(), " "))
        case 4:
            found[some] = found.get(some, "") + rnd.choice(("x", "0", "\u00fc", "\0"))
        case 5:
            found[some] = rnd.choice(VALUES)
        case 6:
            found[rnd.choice(("AccessKEY", "Zz", "_", "SecurityToken"))] = rnd.choice(VALUES) or "x"
        case 7:
            found.pop(some, None)
        case 8:
            body += rnd.randbytes(rnd.randrange(1, 40))
    return found, body


def frames(rnd: random.Random) -> Iterator[tuple[bytes, RemotingHeader]]:
    """Without end: requests of which none proves its user, or that of one who is disabled."""
    known, old, opaque = real_requests(), "", 0
    while True:
        header, body = rnd.choice(known)
        name = rnd.choice(tuple(SECRETS))
        fields = {**header.ext, ACCESS_KEY: name}
        fields[SIGNATURE] = signature(SECRETS[name], fields, body, header.version)
        ext, body = spoiled(fields, body, old, rnd)
        old, claimed = fields[SIGNATURE], SECRETS.get(ext.get(ACCESS_KEY, ""), "")
        is_good = is_signed(claimed, ext, body, header.version)
        if is_good and ext[ACCESS_KEY] != "off":
            continue  # nothing was spoiled: an empty value was left out, say
        opaque += 1
        code = rnd.choice((header.code, header.code, rnd.choice(CODES)))
        odd = header._replace(code=code, ext=ext, opaque=opaque)
        yield frame_head(odd, len(body)) + body, odd


def check_answer(asked: RemotingHeader, code: int, remark: str, body: bytes) -> None:
    what = f"code {asked.code} with {sorted(asked.ext)} got {code}, {remark!r}, {body[:80]!r}"
    if code == ResponseCode.NO_PERMISSION:
        assert remark in TEXTS, what
    else:
        assert code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED, what
    assert body == b"", what


def throw(place: tuple[str, int], number: int, rnd: random.Random) -> Counter[int]:
    """Sends them, looks at each answer, and returns how often each code came."""
    found, made = Counter[int](), frames(rnd)
    for begin in range(0, number, FRAMES_OF_A_CONNECTION):
        with closing(RemotingPeer(place)) as peer:
            for at in range(begin, min(number, begin + FRAMES_OF_A_CONNECTION), FRAMES_AT_ONCE):
                several = [next(made) for _ in range(min(FRAMES_AT_ONCE, number - at))]
                peer.socket.sendall(b"".join(data for data, _ in several))
                for _, asked in several:
                    if asked.flag & ONE_WAY:
                        continue
                    answer = peer.answer_to(asked.opaque)
                    remark = answer.header.remark or ""
                    check_answer(asked, answer.code, remark, answer.body)
                    assert answer.ext.items() <= SEND_EXT.items()
                    found[answer.code] += 1
                assert peer.came == [], "nothing else comes"
    return found


def check_spoiled(root: Path, number: int, seed: int) -> Counter[int]:
    create_store(root)
    write_users(root, table())
    rnd, found = random.Random(seed), Counter[int]()
    with RunningNode(root, SETTINGS, queue_workers=1, readers=1) as node:
        place = remoting_place(node.stderr)
        with closing(SignedPeer(place, "alice", SECRETS["alice"])) as alice:
            assert alice.ask(RequestCode.SEND_MESSAGE_V2, send_fields("safe"), b"x").code == 0
            found += throw(place, number // 10, rnd)
            (gateway,) = node.pids()["gateway"]
            before, end = psutil.Process(gateway).memory_info().rss, node.log_state().appended
            found += throw(place, number, rnd)
            grown = psutil.Process(gateway).memory_info().rss - before
            assert node.log_state().appended == end, "something was stored"
            assert alice.ask(RequestCode.SEND_MESSAGE_V2, send_fields("safe"), b"x").code == 0
        assert grown < 32 * MIB, f"it has grown by {grown / MIB:.0f} MiB"
        assert node.pids()["gateway"] == [gateway], "it was started again"
        assert "Traceback" not in node.stderr
    return found


@pytest.mark.process
def test_requests_with_spoiled_logins_get_what_strangers_get(tmp_path: Path) -> None:
    found = check_spoiled(tmp_path / "store", 3_000, seed=1)
    assert min(found[16], found[3]) > 100


@pytest.mark.process
@pytest.mark.faults
@pytest.mark.timeout(600)
def test_a_hundred_thousand_of_them_get_nothing_more_and_take_no_memory(tmp_path: Path) -> None:
    found = check_spoiled(tmp_path / "store", 100_000, seed=2)
    assert min(found[16], found[3]) > 10_000
