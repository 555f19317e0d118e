"""The Dashboard as a process, and its replies."""

import base64
import json
import re
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from urllib.parse import quote

from node.supervisor.bind import free_ports
from scripts.rivals.dashboard.cases import PageCase
from scripts.rivals.dashboard.masks import Json
from scripts.rivals.rocketmq import Jvm, await_port

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
