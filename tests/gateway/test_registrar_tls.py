"""A registration by TLS: at the name servers that the node trusts, and not a word to others."""

import asyncio
import ssl
from pathlib import Path
from typing import cast

import pytest

from keelog.client.core import ClientCore
from keelog.gateway.name_servers import OtherMasters, Registrar
from keelog.gateway.settings import BrokerName, LiveSettings
from keelog.gateway.topics import Topics
from node.access.tls import ClientTls
from node.runtime.settings import Settings, load_settings
from node.store.config.topics_file import Topic, TopicsFile
from tests.gateway.test_registrar import NOT_REGISTERED, QUICK, REGISTERED, said
from tests.support.certificates import Authority
from tests.support.name_server import FakeNameServer

NAME = BrokerName("c", "b", announced="192.0.2.7:10911")


def context_of(authority: Authority) -> ssl.SSLContext:
    """That of a name server."""
    pair = authority.pair("server")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pair.cert, pair.key)
    return context


@pytest.mark.attack(67)
def test_a_node_registers_by_tls_where_it_trusts_the_certificate_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "other").mkdir()
    ours, stranger = Authority(tmp_path), Authority(tmp_path / "other", "stranger")
    TopicsFile(tmp_path).put([Topic("first", 4, 4)], 1)
    own = ClientTls(load_settings(["tls_enable=true", f"tls_client_trust_cert_path={ours.trust}"]))
    topics = Topics(TopicsFile(tmp_path), cast(ClientCore, None), LiveSettings(Settings()), NAME)

    async def scenario() -> None:
        async with (
            FakeNameServer(tls=context_of(ours)) as good,
            FakeNameServer(tls=context_of(stranger)) as bad,
            FakeNameServer() as plain,
        ):
            others = OtherMasters(tmp_path, NAME, own)
            places = [one.place for one in (good, bad, plain)]
            registrar = Registrar(places, NAME, topics, QUICK, others, own)
            failed: list[BaseException] = []
            registrar.start(failed.append)
            await good.until(lambda: "b" in good.brokers, "not registered")
            assert await said(caplog, good, 1) == [REGISTERED]
            assert await said(caplog, bad, 1) == [NOT_REGISTERED]
            assert await said(caplog, plain, 1) == [NOT_REGISTERED]
            assert not await others.lives(good.place)  # it is asked, and is no master
            assert not await others.lives(bad.place)
            await registrar.stop()
            assert (bad.asked, plain.asked, failed) == ([], [], [])

    with caplog.at_level("INFO", "keelog.gateway"):
        asyncio.run(scenario())
