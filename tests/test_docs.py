"""The documents name places in the code, and those places exist."""

import ast
import re
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)#\s:]+)(?:#[^)\s]*)?\)")
ANCHORED = re.compile(r"\]\(([^)#\s:]*)#([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)
PLACE = re.compile(r"([\w./-]+\.py)::([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)")


def _names(body: Iterable[ast.stmt]) -> dict[str, list[ast.stmt]]:
    """What is defined directly in a body, each with the body of its own."""
    names: dict[str, list[ast.stmt]] = {}
    for node in body:
        if isinstance(node, ast.ClassDef):
            names[node.name] = node.body
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names[node.name] = []
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id: [] for target in targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.If):
            names |= _names([*node.body, *node.orelse])
    return names


def missing_places(text: str, root: Path) -> list[str]:
    """The places `file.py::name` or `file.py::Class.method` in a text that do not exist."""
    missing = []
    for file, dotted in PLACE.findall(text):
        path = root / file
        body = ast.parse(path.read_text()).body if path.is_file() else []
        for part in dotted.split("."):
            names = _names(body)
            if part not in names:
                missing.append(f"{file}::{dotted}")
                break
            body = names[part]
    return missing


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "docs/development.md"])
def test_every_place_that_the_page_names_exists(page: str) -> None:
    assert not missing_places((ROOT / page).read_text(), ROOT)


def test_nothing_is_installed_by_a_name_that_is_on_no_index() -> None:
    """Whoever registers the name `keelog` gets the users who do what we say."""
    by_name = re.compile(r"pip (?:install|download)[^\n`]*(?<![/\w.-])keelog\b")
    folders = ("keelog", "node", "protocol", "docs", "deploy")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.*")]
    files = [path for path in files if path.suffix in (".py", ".md", ".yaml", ".service")]
    found = {
        str(path.relative_to(ROOT)): by_name.findall(path.read_text())
        for path in (*files, ROOT / "README.md", ROOT / "ARCHITECTURE.md")
    }
    assert len(found) > 300
    assert not {path: texts for path, texts in found.items() if texts}


def test_every_relative_link_in_the_documents_leads_somewhere() -> None:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    broken = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in pages
        for target in LINK.findall(CODE.sub("", page.read_text()))
        if not (page.parent / target).exists()
    ]
    assert not broken


def anchors(text: str) -> set[str]:
    """What a link may say after `#`: each heading as GitHub names it."""
    plain = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title) for title in HEADING.findall(text))
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in plain}


def test_every_link_to_a_heading_leads_to_one() -> None:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    links = [
        (page, (page.parent / target).resolve() if target else page, anchor)
        for page in pages
        for target, anchor in ANCHORED.findall(CODE.sub("", page.read_text()))
    ]
    broken = [
        f"{page.relative_to(ROOT)}: {target.name}#{anchor}"
        for page, target, anchor in links
        if target.suffix == ".md" and anchor not in anchors(target.read_text())
    ]
    assert links
    assert not broken


def test_no_page_installs_from_an_index_that_does_not_have_the_package() -> None:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    wrong = [
        f"{page.relative_to(ROOT)}: {line.strip()}"
        for page in pages
        for line in page.read_text(encoding="utf-8").splitlines()
        if re.search(r"pip (install|wheel) [^/]*(?<![\w/.-])keelog(\[\w+\])?['\" ]", line + " ")
    ]
    assert not wrong


def test_the_index_leads_to_every_page_and_decision() -> None:
    index = ROOT / "docs" / "README.md"
    named = {(index.parent / target).resolve() for target in LINK.findall(index.read_text())}
    assert {*ROOT.glob("docs/**/*.md")} - {index} <= named


SAMPLE = """
LIMIT: int = 1
if LIMIT:
    SOME = OTHER = 2

class Log:
    size = 3
    async def append(self): ...

def step():
    inner = 4
"""


@pytest.mark.parametrize(
    "place",
    ["a.py::LIMIT", "a.py::OTHER", "a.py::Log", "a.py::Log.size", "a.py::Log.append", "a.py::step"],
)
def test_a_place_that_exists_is_found(tmp_path: Path, place: str) -> None:
    (tmp_path / "a.py").write_text(SAMPLE)
    assert missing_places(f"1. `{place}` does it.", tmp_path) == []


@pytest.mark.parametrize(
    "place",
    ["b.py::Log", "a.py::append", "a.py::Log.flush", "a.py::step.inner", "a.py::Lo", "a.py::LogS"],
)
def test_a_place_that_does_not_exist_is_reported(tmp_path: Path, place: str) -> None:
    (tmp_path / "a.py").write_text(SAMPLE)
    assert missing_places(f"1. `{place}` does it.", tmp_path) == [place]
