"""The Dashboard as a process: its jar, its start and its replies.

The jar is one that is named, or one that Maven makes of its source: no package registry has the
Dashboard. KEELOG_ROCKETMQ_DASHBOARD names a jar of it, or a folder with its source; else the
source of the release comes from GitHub. Its pages are left out: what is compared is the JSON that
they show.
"""

import base64
import json
import os
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from urllib.parse import quote

from node.supervisor.bind import free_ports
from scripts.rivals.rocketmq import BUILD_S, Jvm, RivalMissing, await_port, missing
from tests.clients.dashboard.cases import Json, PageCase

SWITCH = "KEELOG_ROCKETMQ_DASHBOARD"
RELEASE = "rocketmq-dashboard-2.1.0"
SOURCE = "https://github.com/apache/rocketmq-dashboard.git"
BUILT = Path(__file__).parent / "target"
CLONE_S = 120
_WITHOUT = (
    "-DskipTests", "-Dmaven.test.skip=true", "-Dcheckstyle.skip", "-Drat.skip", "-Djacoco.skip",
    "-Dskip.installnodenpm", "-Dskip.npm",
)  # fmt: skip
ASK_S = 60.0
CHART_S = 180.0
"""The Dashboard adds a point each minute, and saves it some seconds later."""
HEAP = ("-Xms128m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_ACCOUNT = base64.b64encode(b"rocketmq:1234567").decode()
"""Of the Dashboard's own settings; its list of addresses wants it."""
_CELL = re.compile(r"<(?:t|v)(?: [^>]*)?>([^<]*)<")
_OWN_PACKAGE = "org.apache.rocketmq.dashboard.controller"
TOKENS = "/rocketmq-dashboard/csrf-token"
"""Where later versions give the token that changes need."""


def dashboard_jar() -> Path:
    """The jar, built when it must be. Raises RivalMissing when it cannot be had here."""
    if why := missing():
        raise RivalMissing(why)
    named = os.environ.get(SWITCH)
    if named and named.endswith(".jar"):
        jar = Path(named)
        if not jar.is_file():
            raise RivalMissing(f"{SWITCH} names {named}, which is no file")
        return jar
    BUILT.mkdir(exist_ok=True)
    source = Path(named) if named else BUILT / "source"
    jar = BUILT / ("of-a-folder.jar" if named else f"{RELEASE}.jar")
    if named or not jar.is_file():
        if not named:
            _clone(source)
        elif not (source / "pom.xml").is_file():
            raise RivalMissing(f"{SWITCH} names {named}, which has no pom.xml")
        shutil.copyfile(_build(source), jar)
    return jar


def _clone(source: Path) -> None:
    shutil.rmtree(source, ignore_errors=True)
    command = ["git", "clone", "--quiet", "--depth", "1", "--branch", RELEASE, SOURCE, str(source)]
    try:
        subprocess.run(command, capture_output=True, text=True, timeout=CLONE_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        raise RivalMissing(
            f"the Dashboard's source cannot be cloned: {str(said).strip()[-300:]}; name a jar"
            f" or a folder with the source in {SWITCH}"
        ) from error


def _build(source: Path) -> Path:
    # The build copies this folder, where npm would have put the pages.
    (source / "frontend-new" / "build").mkdir(parents=True, exist_ok=True)
    command = ["mvn", "-q", "-B", "-f", str(source / "pom.xml"), *_WITHOUT, "package"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_S, check=False)
    jars = sorted((source / "target").glob("rocketmq-dashboard-*.jar"))
    if done.returncode or not jars:
        raise RivalMissing(
            f"Maven could not build {source}: {(done.stdout + done.stderr).strip()[-800:]}"
        )
    return jars[-1]


class Dashboard:
    """One Dashboard at one name server."""

    def __init__(self, jar: Path, home: Path, name_server: str) -> None:
        self._place = f"127.0.0.1:{free_ports(1)}"
        options = {
            "server.port": self._place.partition(":")[2],
            "rocketmq.config.namesrvAddrs[0]": name_server,
            "rocketmq.config.isVIPChannel": "false",
            "rocketmq.config.dataPath": str(home / "data"),
            "management.endpoints.web.exposure.include": "mappings",
        }
        given = [f"--{name}={value}" for name, value in options.items()]
        self._jvm = Jvm("dashboard", home, [*HEAP, "-jar", str(jar), *given], talks=False)
        await_port(self._jvm, self._place)
        self._headers = {"Authorization": f"Basic {_ACCOUNT}"}
        token = self._ask("GET", TOKENS, None)
        if isinstance(token, dict) and (value := _at(token, "data.token") or token.get("token")):
            self._headers |= {"X-XSRF-TOKEN": value, "Cookie": f"XSRF-TOKEN={value}"}

    def kill(self) -> None:
        """SIGKILL, and its end."""
        self._jvm.kill()

    def ask(self, case: PageCase, names: dict[str, str]) -> Json:
        """The answer to one case; what the case keeps goes to `names`."""
        query = "&".join(
            f"{name}={quote(value.format(**names), safe='')}" for name, value in case.query.items()
        )
        place = f"{case.path}?{query}" if query else case.path
        body = None if case.body is None else json.dumps(_filled(case.body, names)).encode()
        deadline = time.monotonic() + CHART_S
        while True:
            answer = self._ask(case.method, place, body)
            if not case.is_chart or _at(answer, "data") or time.monotonic() > deadline:
                break
            time.sleep(1.0)
        for name, where in case.keeps.items():
            names[name] = str(_at(answer, where))
        return answer

    def addresses(self) -> set[str]:
        """All that its own classes serve."""
        found = self._ask("GET", "/actuator/mappings", None)
        contexts = _at(found, "contexts")
        assert contexts, f"the Dashboard does not list its addresses: {str(found)[:500]}"
        return {
            pattern
            for context in contexts.values()
            for rows in _at(context, "mappings.dispatcherServlets").values()
            for row in rows
            if _OWN_PACKAGE in row["handler"]
            for pattern in row["details"]["requestMappingConditions"]["patterns"]
        }

    def _ask(self, method: str, place: str, body: bytes | None) -> Json:
        headers = dict(self._headers)
        if body is not None:
            headers["Content-Type"] = "application/json"
        url = f"http://{self._place}{place}"
        request = urllib.request.Request(url, body, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=ASK_S) as reply:
                return _parsed(reply.read())
        except urllib.error.HTTPError as error:
            with error:
                return {"status": error.code}


def _parsed(data: bytes) -> Json:
    """JSON, or the cells of a table."""
    if data[:2] != b"PK":
        return json.loads(data) if data[:1] in (b"{", b"[", b'"') else data.decode()
    with zipfile.ZipFile(BytesIO(data)) as table:
        texts = [
            table.read(name).decode()
            for name in sorted(table.namelist())
            if name == "xl/sharedStrings.xml" or name.startswith("xl/worksheets/sheet")
        ]
    return {"cells": [cell for text in texts for cell in _CELL.findall(text)]}


def _filled(body: Json, names: Mapping[str, str]) -> Json:
    match body:
        case str():
            return body.format(**names)
        case dict():
            return {name: _filled(value, names) for name, value in body.items()}
        case list():
            return [_filled(value, names) for value in body]
    return body


def _at(answer: Json, where: str) -> Json:
    """What is at a place such as `data.taskId`; None when there is nothing."""
    for name in where.split("."):
        answer = answer.get(name) if isinstance(answer, dict) else None
    return answer
