"""The files of the console: sizes, the vendored script, rules for templates, a wheel."""

import ast
import gzip
import hashlib
import re
from pathlib import Path

import pytest

from hatch_build import SUFFIXES, nest
from keelog.console.assets import STATIC, Assets
from keelog.console.render import TEMPLATES

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "keelog" / "console").rglob("*.py"))
OWN_SCRIPT_BYTES_MAX = 30_000
STYLE_BYTES_MAX = 20_000
FIRST_LOAD_BYTES_MAX = 40_000
FORBIDDEN = {"form", "FileResponse", "StaticFiles", "url"}
"""Of Starlette: advisories are about these four."""


def test_the_vendored_script_is_the_one_that_its_readme_names() -> None:
    readme = (STATIC / "vendor" / "README").read_text()
    found = hashlib.sha256((STATIC / "vendor" / "idiomorph.min.js").read_bytes()).hexdigest()
    assert found in readme


def test_scripts_and_style_stay_small() -> None:
    own = [path.stat().st_size for path in STATIC.glob("*.js")]
    assert sum(own) < OWN_SCRIPT_BYTES_MAX
    assert (STATIC / "console.css").stat().st_size < STYLE_BYTES_MAX
    packed = sum(len(one.packed) for one in Assets().files.values())
    assert packed < FIRST_LOAD_BYTES_MAX


def test_a_change_of_a_file_changes_the_folder_of_all(tmp_path: Path) -> None:
    (tmp_path / "a.js").write_text("1")
    before = Assets(tmp_path).folder
    (tmp_path / "a.js").write_text("2")
    assert Assets(tmp_path).folder != before
    assert gzip.decompress(Assets(tmp_path).files["a.js"].packed) == b"2"


@pytest.mark.parametrize("path", sorted(TEMPLATES.glob("*.html")), ids=lambda path: path.name)
def test_a_template_has_no_style_no_script_and_escapes_everything(path: Path) -> None:
    text = path.read_text()
    assert not re.search(r"\sstyle\s*=", text)
    assert not re.search(r"\son[a-z]+\s*=\s*[\"']", text)
    assert "|safe" not in text.replace(" ", "")
    assert "Markup(" not in text
    assert "autoescape" not in text
    assert not re.search(r"<script(?![^>]*\ssrc=)", text)
    assert "http://" not in text
    assert "https://" not in text
    links = re.findall(r'(?:href|src|action)="([^"]*)"', text)
    assert all(link.startswith(("{{", "#")) for link in links), links


def test_nothing_of_starlette_that_has_a_record_of_holes_is_used() -> None:
    found = []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            name = getattr(node, "attr", None) or getattr(node, "name", "")
            of_request = isinstance(node, ast.Attribute) and ast.unparse(node.value) == "request"
            if name in FORBIDDEN and (of_request or name[0].isupper()):
                found.append(f"{path.name}: {name}")
    assert not found
    assert not any("Markup(" in path.read_text() for path in SOURCES)


def test_scripts_make_no_code_of_text() -> None:
    for path in STATIC.glob("*.js"):
        text = path.read_text()
        assert "eval(" not in text
        assert "innerHTML" not in text
        assert "new Function" not in text
        assert not re.search(r"https?://", text)


def test_a_wheel_has_templates_style_and_scripts(tmp_path: Path) -> None:
    places = set(nest(ROOT, tmp_path).values())
    wanted = [*TEMPLATES.glob("*.html"), *STATIC.rglob("*.js"), *STATIC.glob("*.css")]
    assert {path.relative_to(ROOT).as_posix() for path in wanted} <= places
    assert {".html", ".css", ".js", ".svg"} <= set(SUFFIXES)
