"""Every block of code in every page: who runs it, or why nobody does."""

import ast
import re
import shlex
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from keelog.cli.main import run
from tests.cli.tree import assert_is_read
from tests.support.pages import Block, agrees, blocks

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(
    str(path.relative_to(ROOT)) for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
)
RUN_BY = {
    ("README.md", "console python text"): "tests/test_readme.py",
    ("docs/client.md", "python text"): "tests/keelog/test_examples.py",
    ("docs/load-testing.md", "console python"): "tests/cli/test_bench.py",
    ("docs/spark.md", "python"): "tests/pipeline/test_spark_doc.py",
    ("docs/operations.md", "console"): "tests/cli/test_pages.py",
    ("docs/command-line.md", "console"): "tests/cli/test_pages.py",
    ("docs/troubleshooting.md", "console"): "tests/cli/test_pages.py",
    ("docs/settings.md", "toml"): "tests/test_pages.py",
    ("docs/tls.md", "console properties"): "tests/node/access/test_tls_page.py",
    ("docs/rocketmq-clients.md", "java"): "tests/interop/test_first_java_program.py",
}
"""Page and languages of its fenced blocks, and the test that runs, or holds, all of these."""
GENERATED = re.compile(r"<!-- generated: .*?<!-- end -->", re.DOTALL)
PICTURE = re.compile("[─│├└→]")
LEFT_OUT = (
    (r"steady +sent", "figures of one run, whose command stands above them and is run"),
    (r"the generator was late by", "figures of one run, as above"),
    (r"python -m (scripts|tests\.clients)\.", "measures for minutes, or starts a broker"),
    (r"keelog bench ", "measures for minutes"),
    (r"follower 10\.", "shows lines of a status; tests/replication holds what is in them"),
    (r"elected: node", "shows lines of a status; tests/replication holds what is in them"),
    (r"keelog serve ", "stays in the foreground; the README's is run"),
    (r"mqadmin clusterList ", "needs RocketMQ's tools: tests/clients/test_mqadmin.py"),
    (r"keelog user ", "prints a password: tests/cli/test_users.py, tests/cli/test_examples.py"),
    (r"client = keelog\.connect\(", "needs a node with keys: tests/whole/test_keys.py"),
    (r"keelog key ", "makes keys: tests/cli/test_key.py, tests/node/supervisor/test_exposed.py"),
    (
        r"scrape_configs:",
        "needs Prometheus; as deploy/prometheus has it, which tests/test_deploy.py reads",
    ),
    (r"mkdir -p deploy/", "makes secrets for compose: tests/deploy/test_image.py does the same"),
    (r"error: cannot serve /srv", "as tests/node/supervisor/test_exposed.py has it"),
    (r"keelog group ", "needs RocketMQ's clients: tests/cli/test_group.py"),
    (r"keelog spark ", "a Spark job: tests/cli/test_examples.py, tests/pipeline run them"),
    (
        r"pip (install|wheel) |rm -f dist/",
        "asks a package index: tests/deploy/test_systemd.py and tests/whole/test_wheel.py do it",
    ),
    (r"spark\.read\.format.*s3://", "needs an object store; tests/pipeline have one of their own"),
    (r"map_filter\(", "an expression of SQL, run by tests/pipeline/sink/test_sink_spark.py"),
    (r"error: cannot serve", "needs a low limit: tests/whole/test_faults_descriptors.py"),
    (r"error: the writer of", "needs a disk that fails: tests/whole/test_faults_disk_errors.py"),
    (
        r"error: cannot read orders",
        "needs damage under a node: tests/node/store/test_read_paths.py",
    ),
    (r"error: cannot send to orders", "needs a full disk: tests/whole/test_faults_full_disk.py"),
    (r"\$ keelog status", "needs a disk that fails: tests/whole/test_faults_disk_errors.py"),
    (
        r"2026-\S+ WARNING",
        "a line of each form, as tests/node/runtime/test_event_log.py writes them",
    ),
    (r"\[header\]", "frames, as tests/node/test_protocol_doc.py sends them"),
    (r"000000b9 daa320a7|87 a176 01", "bytes that tests/node/test_protocol_doc.py encodes"),
)
"""The first line of a block that nobody runs, and why. Its commands are read all the same."""
HINT = re.compile(r"^ *try: (.*)$", re.MULTILINE)
FIXED = re.compile(r"[a-z][a-z ,;]{11,}")


def page_blocks(page: str) -> list[Block]:
    """The blocks of a page that no generator writes."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return list(blocks(GENERATED.sub(lambda part: "\n" * part[0].count("\n"), text)))


def runner(page: str, block: Block) -> str | None:
    """The test that runs it, if any does."""
    for (name, languages), test in RUN_BY.items():
        if name == page and block.is_fenced and block.language in languages.split():
            return test
    return None


def reason(block: Block) -> str | None:
    """Why nobody runs it, if that is known."""
    return next((why for first, why in LEFT_OUT if re.match(first, block.first)), None)


@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_a_page_is_run_or_has_its_reason(page: str) -> None:
    for block in page_blocks(page):
        if block.language == "" and PICTURE.search(block.text):
            continue
        assert runner(page, block) or reason(block), (
            f"{page}, line {block.line}: {block.first}: fence it as `console`, so that it is run,"
            " or say in LEFT_OUT why nobody runs it"
        )


def test_the_tests_that_run_pages_name_them() -> None:
    for (page, _), test in RUN_BY.items():
        assert Path(page).stem in (ROOT / test).read_text(encoding="utf-8"), (page, test)
    for _, why in LEFT_OUT:
        for named in re.findall(r"tests/[\w/.]+", why):
            assert (ROOT / named).exists(), named


def test_every_reason_is_needed() -> None:
    idle = [block for page in PAGES for block in page_blocks(page) if not runner(page, block)]
    for first, _ in LEFT_OUT:
        assert any(re.match(first, block.first) for block in idle), first


def command_lines(block: Block) -> list[list[str]]:
    """The commands of a block, pipes and comments taken apart."""
    lines = block.text.replace("\\\n", " ").splitlines()
    parts = [part for line in lines for part in re.split(r" \| | && ", line.split(" # ")[0])]
    texts = [part.strip().removeprefix("$ ").removesuffix("&") for part in parts]
    return [shlex.split(text) for text in texts if re.match(r"(keelog|python -m) ", text)]


def test_commands_that_nobody_runs_can_be_read() -> None:
    count = 0
    for page in PAGES:
        for block in page_blocks(page):
            if runner(page, block):
                continue
            for words in command_lines(block):
                count += 1
                if words[0] == "keelog":
                    assert_is_read(words[1:])
                else:
                    assert find_spec(words[2]), words
                    assert_has_options(words)
    assert count > 10


@cache
def strings_of_scripts() -> set[object]:
    """Every constant of every script, its options among them."""
    return {
        node.value
        for folder in ("scripts", "tests/soak", "tests/clients")
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant)
    }


def assert_has_options(words: list[str]) -> None:
    """Each option of a script is a string of some script."""
    known = strings_of_scripts()
    for word in words[3:]:
        assert not word.startswith("--") or word in known, words


def test_hints_that_pages_show_are_those_of_the_code() -> None:
    folders = ("protocol", "node", "workers", "keelog")
    files = [path for name in folders for path in (ROOT / name).rglob("*.py")]
    code = "\n".join(path.read_text(encoding="utf-8") for path in files)
    for page in PAGES:
        for block in page_blocks(page):
            for hint in [] if runner(page, block) else HINT.findall(block.text):
                parts = FIXED.findall(hint)
                assert not parts or any(part.strip() in code for part in parts), (page, hint)


def test_settings_files_on_pages_are_right(tmp_path: Path) -> None:
    found = [block for page in PAGES for block in page_blocks(page) if block.language == "toml"]
    for block in found:
        file = tmp_path / "keelog.toml"
        file.write_text(block.text)
        assert run(["config", "check", str(file)]) == 0, block
    assert found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\n```console\n$ b\n```\n", (2, "console", "$ b\n", True)),
        ("a\n\n    b\n\n    c\nd\n", (3, "", "    b\n\n    c\n", False)),
    ],
)
def test_fenced_and_indented_blocks_are_found(text: str, expected: tuple[object, ...]) -> None:
    assert [tuple(block) for block in blocks(text)] == [expected]


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        ("msg_id 7F0000010000268E0000000000000000, 34.0 MiB", "msg_id " + "0" * 32 + ", 7 MiB"),
        ("name     pid\nwriter  12", "name  pid\nwriter    3  \n"),
        ("…/store/lock is held", "/tmp/x/store/lock is held"),
        ("…\nlast 1\n…", "first\nsecond\nlast 2\nbye"),
    ],
)
def test_numbers_ids_and_widths_may_differ(expected: str, actual: str) -> None:
    assert agrees(expected, actual)


@pytest.mark.parametrize(
    ("expected", "actual"),
    [("error: no", "error: yes"), ("one", "one\ntwo"), ("…/lock is held", "/a\n/lock is held")],
)
def test_words_and_lines_may_not_differ(expected: str, actual: str) -> None:
    assert not agrees(expected, actual)
