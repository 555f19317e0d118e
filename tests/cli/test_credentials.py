"""No command shows the credentials that stand in an address, on stdout or stderr."""

import json
from pathlib import Path

import pytest

from keelog.cli.main import run

SECRET = "SeCrEt5tring"
STORES = (
    f"s3a://KEY:{SECRET}@bucket/x",
    f"https://user:{SECRET}@host/x",
    f"tcp://user:{SECRET}@127.0.0.1:1",
    f"s3://KEY:ab/{SECRET}@bucket/x",
    f"s3://bucket/x?secret_key={SECRET}",
    f"file://user:{SECRET}@host/x",
)
NODE = f"tcp://user:{SECRET}@127.0.0.1:1"


def shown(capfd: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """A command's exit code, and all that it printed."""
    code = run(words)
    printed = capfd.readouterr()
    return code, printed.out + printed.err


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.mark.parametrize("store", STORES)
def test_a_store_that_is_refused_is_named_without_its_credentials(
    capfd: pytest.CaptureFixture[str], store: str
) -> None:
    for words in (
        ("spark", "stats", store),
        ("spark", "audit", store),
        ("spark", "rebuild", store),
        ("spark", "export", store, "--out", "out"),
        ("store", "info", store),
        ("store", "verify", store),
        ("store", "export", store, "--parquet", "out"),
    ):
        code, text = shown(capfd, *words)
        assert code, words
        assert text.startswith("error:"), text
        assert SECRET not in text


@pytest.mark.parametrize("out", STORES)
def test_where_an_export_cannot_go_is_named_without_its_credentials(
    capfd: pytest.CaptureFixture[str], out: str
) -> None:
    Path("store/commitlog").mkdir(parents=True)
    for words in (
        ("spark", "export", "store", "--out", out),
        ("spark", "rebuild", "store", "--out", out),
        ("store", "export", "store", "--parquet", out),
    ):
        code, text = shown(capfd, *words)
        assert code, words
        assert SECRET not in text


@pytest.mark.parametrize(
    "words",
    [
        ("health",),
        ("status",),
        ("topic", "ls"),
        ("consume", "t", "-e"),
        ("msg", "get", "00"),
        ("diag", "-o", "d.zip"),
    ],
)
def test_a_node_is_named_without_its_credentials(
    capfd: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    code, text = shown(capfd, *words, "--node", NODE)
    assert (code, SECRET in text, "tcp://***@127.0.0.1:1" in text) == (2, False, True)


def test_a_context_keeps_its_address_and_shows_it_without_credentials(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    add = ("context", "add", "p", "--node", NODE)
    assert shown(capfd, *add)[0] == 0
    assert SECRET in (tmp_path / "config/keelog/contexts.toml").read_text()
    for words in (add, ("context", "ls", "--json"), ("-c", "p", "config", "show")):
        text = shown(capfd, *words)[1]
        assert SECRET not in text
        assert "tcp://***@127.0.0.1:1" in text


def test_an_export_says_where_it_went_without_credentials(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from keelog.pipeline.jobs import export
    from keelog.pipeline.jobs.export import ExportResult

    def answer(_store: str, out: str, *_: object, **__: object) -> ExportResult:
        return ExportResult(out, 1, 0, 0, 0, 0, 0, 0.0)

    Path("store/commitlog").mkdir(parents=True)
    monkeypatch.setattr(export, "export_here", answer)
    code, text = shown(
        capfd, "store", "export", "store", "--parquet", f"s3://KEY:{SECRET}@bucket/x", "--json"
    )
    assert (code, json.loads(text)["out"]) == (0, "s3://***@bucket/x")
