"""The image: built by buildah from its Dockerfile and context, started as people start it."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from tests.deploy.debian import ROOT, base, missing, run
from tests.deploy.machine import Machine
from tests.support.image_context import copy_of_context
from tests.support.node import wait_until

pytestmark = [pytest.mark.deploy, pytest.mark.xdist_group("deploy"), pytest.mark.timeout(900)]

COMPOSE = ROOT / "deploy" / "docker" / "compose.yaml"
NO_ENTRY = 47110
"""A user that /etc/passwd does not have, as OpenShift gives one."""


class Image(NamedTuple):
    """A built image: its root file system and its configuration."""

    folder: Path
    config: dict[str, list[str]]

    @property
    def env(self) -> tuple[str, ...]:
        return tuple(self.config["Env"])


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    """Built without a registry: a Debian stands for the image that the Dockerfile begins with."""
    if missing():
        pytest.skip(missing())
    place = tmp_path_factory.mktemp("image")
    store = ("--root", str(place / "images"), "--runroot", str(place / "run"))
    buildah = ("buildah", *store, "--storage-driver", "vfs")

    first = run(*buildah, "from", "scratch").strip()
    mounted = Path(run(*buildah, "mount", first).strip())
    run("cp", "-a", f"{base()}/.", str(mounted))
    (mounted / "usr" / "local" / "bin" / "python").symlink_to("/usr/bin/python3")
    certificates = "etc/ssl/certs/ca-certificates.crt"
    (mounted / certificates).write_bytes(Path("/", certificates).read_bytes())
    run(*buildah, "commit", "--rm", first, "docker.io/library/python:3.11-slim")

    context = copy_of_context(place / "context")
    words = ["bud", "--isolation", "chroot", "--pull=never", "--layers=false", "--no-cache"]
    words += ["--env", f"PIP_CERT=/{certificates}", "-t", "keelog"]
    run(*buildah, *words, "-f", str(context / "deploy" / "docker" / "Dockerfile"), str(context))
    config = json.loads(run(*buildah, "inspect", "--type", "image", "localhost/keelog"))["OCIv1"][
        "config"
    ]
    second = run(*buildah, "from", "--pull=never", "localhost/keelog").strip()
    yield Image(Path(run(*buildah, "mount", second).strip()), config)
    run(*buildah, "umount", "--all")


def as_user(user: int, group: int) -> tuple[str, ...]:
    return ("setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups")


def started(
    image: Image, volume: Path, log: Path, words: list[str], who: tuple[str, ...], *more: str
) -> Machine:
    """The image as process 1, with a read-only root."""
    options = ["--read-only", "--tmpfs=/tmp", f"--bind={volume}:/var/lib/keelog", *more]
    options += [f"--setenv={one}" for one in image.env]
    return Machine(
        image.folder, log, *options,
        words=(*who, *image.config["Entrypoint"], *words),
    )  # fmt: skip


def make_logins(store: Path, secrets: Path) -> None:
    """The files of compose's secrets, as docs/operations.md has them, and what `setup` does."""
    secrets.mkdir()
    (secrets / "first_user.json").write_text('{"username":"operator","password":"canary-secret"}')
    (secrets / "http_token").write_text("0123456789abcdef")
    key = str(secrets / "client.key")
    for words in (
        ["key", "new", "client", "--folder", str(secrets)],
        ["user", "create", "client", "--super", "--public-key", key, "--store", str(store)],
        ["key", "init", str(store)],
    ):
        subprocess.run([sys.executable, "-m", "keelog", *words], check=True, cwd=ROOT)
    for path in secrets.iterdir():
        run("chown", f"0:{NO_ENTRY}", str(path))
        path.chmod(0o640)


def wait_healthy(node: Machine, image: Image, who: tuple[str, ...]) -> None:
    """Returns when the image's own check says so; `PATH` is the image's."""
    text = (ROOT / "deploy" / "docker" / "Dockerfile").read_text()
    check = json.loads(text.partition("HEALTHCHECK")[2].partition("CMD ")[2].splitlines()[0])
    deadline = time.monotonic() + 120
    while True:
        try:
            node("exec " + " ".join(check), *who, env=image.env)
        except AssertionError:
            if time.monotonic() > deadline:
                raise
            time.sleep(1.0)
        else:
            return


def test_the_image_serves_as_process_1_and_stops_in_order(image: Image, tmp_path: Path) -> None:
    volume = tmp_path / "volume"
    volume.mkdir(mode=0o700)
    user = int(image.config["User"])  # type: ignore[call-overload]
    run("chown", f"{user}:{user}", str(volume))
    who = as_user(user, user)
    words = [*image.config["Cmd"], "--open", "zeromq,http"]
    with started(image, volume, tmp_path / "log", words, who) as node:
        wait_healthy(node, image, who)
        node("echo one | keelog produce orders --quiet", *who, env=image.env)
        names = [one.name() for one in node.init.children()]
        assert node.init.name() == "keelog-serve"
        assert any("writer" in name for name in names)
        (reader,) = (one for one in node.init.children() if "reader" in one.name())
        reader.kill()
        wait_until(lambda: not reader.is_running(), "it lives")
        wait_healthy(node, image, who)
        got = node("keelog consume orders -o start -e -f '%v\\n'", *who, env=image.env)
        assert got.split() == ["one"]
        assert node.stop() == 0, node.log.read_text()
    assert not (volume / "store" / "abort").exists()


def test_composes_command_runs_with_any_user_and_group(image: Image, tmp_path: Path) -> None:
    volume = tmp_path / "volume"
    volume.mkdir()
    run("chown", f"0:{NO_ENTRY}", str(volume))
    volume.chmod(0o2775)  # a volume of the user's group, as Kubernetes' fsGroup makes one
    command = yaml.safe_load(COMPOSE.read_text())["services"]["node"]["command"]
    secrets = tmp_path / "secrets"
    make_logins(volume / "store", secrets)
    run("chown", "-R", f"{NO_ENTRY}:{NO_ENTRY}", str(volume / "store"))
    who = as_user(NO_ENTRY, NO_ENTRY)
    bound = f"--bind-ro={secrets}:/run/secrets"
    with started(image, volume, tmp_path / "log", command, who, bound) as node:
        wait_healthy(node, image, who)
        node("echo one | keelog produce orders --quiet", *who, env=image.env)
        got = node("keelog consume orders -o start -e -f '%v\\n'", *who, env=image.env)
        assert got.split() == ["one"]
        assert node.stop() == 0, node.log.read_text()
