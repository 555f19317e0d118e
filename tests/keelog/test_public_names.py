"""What `import keelog` promises: each name is there, is explained, and stands on the page."""

import importlib.metadata
import inspect
import pydoc
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints, is_typeddict

import pytest

import keelog
import keelog.aio
import keelog.store
import keelog.testing

PAGE = Path(__file__).parents[2] / "docs" / "client.md"
OUR_PACKAGES = {"client", "keelog", "node", "protocol"}
FOR_THE_ENCODER = {"draft"}
"""Methods of public classes that programs have no use for."""
BASES = {"MqError", "RefusedError", "BusyError", "CorruptError", "OutcomeUnknownError"}
ERRORS = {
    name: kind
    for name in keelog.__all__
    if inspect.isclass(kind := getattr(keelog, name)) and issubclass(kind, keelog.MqError)
}


def public(owner: Any) -> Iterator[tuple[str, Any]]:
    """Functions, properties and classes of an object, by their full names."""
    for name, member in vars(owner).items():
        is_ours = inspect.isfunction(member) or isinstance(member, property | classmethod)
        if is_ours and not name.startswith("_"):
            yield f"{owner.__name__}.{name}", member


def test_every_public_name_is_explained() -> None:
    classes = [getattr(keelog, name) for name in keelog.__all__]
    classes += [keelog.aio.Client, keelog.aio.Consumer, keelog.aio.Producer]
    classes += [keelog.testing.TestNode]
    classes += [keelog.store.OpenStore]
    told = {kind.__name__: kind for kind in classes}
    for kind in filter(inspect.isclass, classes):
        told |= dict(public(kind))
    generated = re.compile(r"\w+\(.*\)$")  # what dataclass and NamedTuple write
    silent = [
        name
        for name, thing in told.items()
        if not (text := inspect.getdoc(thing)) or generated.match(text.splitlines()[0])
    ]
    assert not silent


def test_help_shows_what_there_is_before_anything_was_used() -> None:
    assert set(keelog.__all__) == set(dir(keelog))
    text = pydoc.plain(pydoc.render_doc(keelog))
    assert all(re.search(rf"\b{name}\b", text) for name in keelog.__all__)


OPTIONS = [kind for name in keelog.__all__ if is_typeddict(kind := getattr(keelog, name))]


@pytest.mark.parametrize("kind", OPTIONS, ids=lambda kind: kind.__name__)
def test_help_of_options_has_a_sentence_for_each(kind: type) -> None:
    text = pydoc.plain(pydoc.render_doc(kind)).partition("Method resolution order")[0]
    for name in kind.__annotations__:
        assert re.search(rf"`{name}`: \S", text), name


def test_the_version_is_that_of_the_package() -> None:
    assert keelog.__version__ == importlib.metadata.version("keelog")


def classes_in(hint: object) -> Iterator[type]:
    """The classes that an annotation is made of."""
    for part in get_args(hint):
        yield from classes_in(part)
    if inspect.isclass(hint):
        yield hint


def results_of(owner: type) -> Iterator[object]:
    """What the methods, properties and fields of a class give."""
    yield from get_type_hints(owner).values()
    for name, member in vars(owner).items():
        if name.startswith("_") or name in FOR_THE_ENCODER:
            continue
        got = member.fget if isinstance(member, property) else getattr(member, "func", member)
        got = getattr(got, "__func__", got)
        if inspect.isfunction(got):
            yield get_type_hints(got).get("return")


def test_the_type_of_every_public_result_can_be_imported_from_keelog() -> None:
    ours = {getattr(keelog, name) for name in keelog.__all__}
    ours |= {getattr(keelog.aio, name) for name in keelog.aio.__all__} | {keelog.store.OpenStore}
    public = [one for one in ours if inspect.isclass(one) and not is_typeddict(one)]
    missing = {
        f"{owner.__name__}: {found.__module__}.{found.__name__}"
        for owner in public
        if owner is not keelog.store.OpenStore  # what it inherits is not of its page
        for hint in results_of(owner)
        for found in classes_in(hint)
        if found.__module__.split(".")[0] in OUR_PACKAGES and found not in ours
    }
    assert not missing


def test_the_page_has_every_error_and_says_whether_it_may_be_retried() -> None:
    table = PAGE.read_text(encoding="utf-8").partition("## Errors")[2]
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| (yes|no) \|", table, re.MULTILINE)
    shown = {name: answer == "yes" for names, answer in rows for name in re.findall(r"\w+", names)}
    assert shown == {n: kind.retriable for n, kind in ERRORS.items() if n not in BASES}


@pytest.mark.parametrize("name", ["Client", "Consumer", "Producer"])
def test_the_page_names_no_call_that_is_not_there(name: str) -> None:
    text = PAGE.read_text(encoding="utf-8")
    for called in set(re.findall(rf"\b{name.lower()}\.(\w+)\(", text)):
        assert hasattr(getattr(keelog, name), called), called


def test_the_names_of_spark_say_what_to_install_where_pyspark_is_missing() -> None:
    program = "import sys; sys.modules['pyspark'] = None\nimport keelog.spark"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "pyspark is missing" in done.stderr
    assert "pip install 'pyspark>=4.2,<4.4' 'pyarrow>=18'" in done.stderr
