"""A replica's and a keeper's connections by TLS: to whom they speak, and to whom not a word."""

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from keelog.replication import roles
from keelog.replication.keeper.controllers import Controllers, ControllersAway
from keelog.replication.replica.master_link import (
    ConnectJob,
    MasterLink,
    RemotingAsker,
    ask_facts,
    connect_to,
)
from keelog.replication.roles import MasterLives
from node.access.tls import ClientTls, TlsSocket
from node.runtime.run_files import FollowState, MasterPlace
from node.runtime.settings import Settings, load_settings
from protocol.ha import encode_report
from protocol.remoting.codes import ResponseCode
from protocol.remoting.frame_reader import FrameReader, frame_head
from tests.support.certificates import Authority

Talk = Callable[[socket.socket], None]


def answer_all(connected: socket.socket) -> None:
    """A server that answers each request with its own fields, and names itself the leader."""
    reader = FrameReader()
    while size := connected.recv_into(reader.room()):
        for header, _ in reader.received(size):
            own = "{}:{}".format(*connected.getsockname())
            ext = {**header.ext, "controllerLeaderAddress": own}
            connected.sendall(frame_head(header.answer(ResponseCode.SUCCESS, ext, None), 0))


class TlsServer:
    """Takes connections by TLS, one after the other, in a thread."""

    def __init__(self, context: ssl.SSLContext | None, talk: Talk = answer_all) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._context, self._talk = context, talk
        self.place = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.heard = bytearray()
        """Of those that came without TLS."""
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                plain, _ = self._listener.accept()
            except OSError:
                return
            plain.settimeout(20)
            with suppress(OSError), plain:
                if self._context is None:
                    self.heard += plain.recv(1000)
                    continue
                with self._context.wrap_socket(plain, server_side=True) as made:
                    self._talk(made)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def own(authority: Authority) -> ClientTls:
    """The node's own: it trusts the authority, and shows a certificate of it."""
    trust = f"tls_client_trust_cert_path={authority.trust}"
    return ClientTls(
        load_settings(["tls_enable=true", trust, *authority.pair("own", "replica").client])
    )


@pytest.fixture
def serve(authority: Authority) -> Iterator[Callable[..., TlsServer]]:
    """Makes servers with a certificate for 127.0.0.1, which ask for the client's."""
    made = []

    def start(
        of: Authority = authority, host: str = "127.0.0.1", talk: Talk = answer_all
    ) -> TlsServer:
        pair = of.pair("server", host)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.trust))
        context.load_cert_chain(pair.cert, pair.key)
        context.verify_mode = ssl.CERT_REQUIRED
        made.append(TlsServer(context, talk))
        return made[-1]

    yield start
    for one in made:
        one.close()


def test_questions_and_answers_go_by_tls(serve: Callable[..., TlsServer], own: ClientTls) -> None:
    server = serve()
    with RemotingAsker(server.place, 20, own) as asker:
        assert isinstance(asker._socket, TlsSocket)
        assert asker.ask(105, {"topic": "t" * 100_000}).ext["topic"] == "t" * 100_000


def test_controllers_are_asked_by_tls(serve: Callable[..., TlsServer], own: ClientTls) -> None:
    server = serve()
    controllers = Controllers([server.place], own)
    # The first connection ends before the second: the server takes one at a time.
    assert controllers.ask(1001, {"a": "b"}).ext["a"] == "b"
    assert controllers.leader == server.place
    controllers.close()


@pytest.mark.attack(67)
def test_a_wrong_master_gets_no_word_and_its_log_is_not_copied(
    serve: Callable[..., TlsServer], own: ClientTls, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    stranger = serve(of=Authority(tmp_path / "other", "stranger"))
    elsewhere = serve(host="10.9.9.9")
    for server, why in (
        (stranger, "CERTIFICATE_VERIFY_FAILED"),
        (elsewhere, "IP address mismatch"),
    ):
        with pytest.raises(ssl.SSLCertVerificationError, match=why):
            RemotingAsker(server.place, 20, own)
        assert ask_facts(server.place, tls=own) is None
        job = ConnectJob(MasterPlace(server.place, server.place), own)
        job.run()
        assert job.connected is None
        assert job.facts is None
        assert "tls_enable is set" in job.why
        with pytest.raises(ControllersAway):
            Controllers([server.place], own).ask(1001, {})


def test_a_master_without_tls_hears_no_request(own: ClientTls) -> None:
    plain = TlsServer(None)
    try:
        with pytest.raises(OSError):
            RemotingAsker(plain.place, 1.0, own)
        assert plain.heard[:1] == b"\x16"
        assert b"{" not in plain.heard[:5]
    finally:
        plain.close()


def test_a_node_whose_files_are_gone_does_not_connect_plainly(
    serve: Callable[..., TlsServer], own: ClientTls, authority: Authority
) -> None:
    server = serve()
    authority.trust.unlink()
    with pytest.raises(OSError, match="tls_client_trust_cert_path"):
        RemotingAsker(server.place, 20, own)


def test_a_replica_is_not_promoted_beside_a_master_that_speaks_tls(
    serve: Callable[..., TlsServer], authority: Authority
) -> None:
    server, plain = serve(), TlsServer(None)
    state = FollowState(remoting=server.place, master_end=7)
    strange = load_settings(["tls_enable=true"])  # it does not trust the authority
    for settings in (Settings(), strange):
        with pytest.raises(MasterLives, match="speaks TLS"):
            roles._master_end(state, settings, False)
        assert roles._master_end(state, settings, True) == 7
    # One that does not is away.
    assert roles._master_end(state._replace(remoting=plain.place), Settings(), False) == 7
    plain.close()
    assert roles._master_end(state._replace(remoting=plain.place), Settings(), False) == 7


def test_a_link_waits_for_nobody_and_sends_each_report_whole(
    serve: Callable[..., TlsServer], own: ClientTls
) -> None:
    came: list[bytes] = []
    is_read, has_all = threading.Event(), threading.Event()

    def talk(connected: socket.socket) -> None:
        is_read.wait(20)
        data = b""
        while not data.endswith(encode_report(LAST)):
            data += connected.recv(1 << 16)
        came.append(data)
        has_all.set()

    server = serve(talk=talk)
    connected = connect_to(server.place, 20, own)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    connected.setblocking(False)
    link = MasterLink(connected, 0.0, is_encrypted=True)
    assert link.receive(0.0) == []
    end, sent = 0, []
    while not link._unsent:
        end += 1
        sent.append(end)
        link.report(end, 0.0)
    link.report(end + 1, 0.0)
    link.report(LAST, 0.0)
    is_read.set()
    for _ in range(10_000):
        link._send()
        if has_all.wait(0.001):
            break
    link.close()
    (data,) = came
    assert data == b"".join(map(encode_report, [*sent, LAST]))


LAST = 1 << 40
