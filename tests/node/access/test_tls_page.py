"""The commands of docs/tls.md, as they stand there: they make files that a node takes."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from node.access.tls import client_context, server_context
from node.access.tls_settings import load_tls
from node.runtime.settings import load_settings
from tests.support.certificates import shake_hands
from tests.support.pages import blocks

PAGE = Path(__file__).resolve().parents[3] / "docs" / "tls.md"


def page_block(language: str) -> str:
    """The one block of the page in a language."""
    (found,) = (one for one in blocks(PAGE.read_text("utf-8")) if one.language == language)
    return found.text


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes keys with openssl")
def test_from_nothing_to_a_certificate_in_the_commands_of_the_page(tmp_path: Path) -> None:
    *makes, serve = [line.removeprefix("$ ") for line in page_block("console").splitlines()]
    for command in makes:
        subprocess.run(shlex.split(command), cwd=tmp_path, check=True, capture_output=True)
    given = shlex.split(serve.replace("$PWD", str(tmp_path)))
    pairs = [given[at + 1] for at, word in enumerate(given) if word == "-X"]
    trust = [f"tls_client_trust_cert_path={tmp_path}/ca.pem", "tls_enable=true"]
    client = client_context(load_tls(load_settings(trust)))
    for host in ("db7.example.org", "192.0.2.7"):
        shake_hands(server_context(load_tls(load_settings(pairs))), client, host)


def test_the_file_of_a_java_client_is_one_that_a_node_reads(tmp_path: Path) -> None:
    file = tmp_path / "tls.properties"
    file.write_text(page_block("properties"))
    found = load_tls(load_settings([f"tls_config_file={file}"])).settings
    assert found.tls_client_auth_server
    assert re.fullmatch("/etc/rocketmq/ca.pem", found.tls_client_trust_cert_path)
