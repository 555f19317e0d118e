"""The files of deploy/: they can be read, fit together, and name what there is."""

import configparser
import json
import re
import shlex
import shutil
import subprocess
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from keelog.cli.main import cli
from node.runtime.process import EXIT_DAMAGED, EXIT_LOCKED, EXIT_USAGE
from node.runtime.settings import Settings, load_settings
from node.supervisor.bind import parse_http
from node.supervisor.exposed import (
    EndNeedsLogin,
    Exposure,
    known_at,
    makes_first_user,
    served_ends,
)
from node.supervisor.options import ServeSettings

ROOT = Path(__file__).resolve().parents[1]
DEPLOY = ROOT / "deploy"
BOARD = DEPLOY / "grafana" / "keelog.json"
UNIT = DEPLOY / "systemd" / "keelog.service"
ALERTS = DEPLOY / "prometheus" / "alerts.yml"
COMPOSE = DEPLOY / "docker" / "compose.yaml"
METRICS_PORT = 7855


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def dockerfile() -> dict[str, list[str]]:
    """The arguments of each instruction, continued lines joined."""
    found: dict[str, list[str]] = {}
    text = (DEPLOY / "docker" / "Dockerfile").read_text().replace("\\\n", " ")
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, _, rest = line.partition(" ")
            found.setdefault(name, []).append(rest)
    return found


def assert_serve_takes(words: list[str]) -> None:
    """Raises nothing but for the missing directory: all options are there."""
    result = CliRunner().invoke(cli, [*words, "--help"])
    assert result.exit_code == 0, result.output


def test_every_panel_of_the_board_has_a_query_and_a_place() -> None:
    board = json.loads(BOARD.read_text())
    assert [one["name"] for one in board["templating"]["list"]] == ["ds", "instance"]
    rows = [one["title"] for one in board["panels"] if one["type"] == "row"]
    assert rows == [
        *("Is it fine?", "Rates", "Latency stages", "Storage", "Lag", "RocketMQ's clients"),
        *("Replication", "Processes"),
    ]
    panels = [one for one in board["panels"] if one["type"] != "row"]
    for panel in panels:
        assert panel["datasource"]["uid"] == "${ds}"
        assert all(target["expr"] for target in panel["targets"])
    places = [(one["gridPos"]["x"], one["gridPos"]["y"]) for one in board["panels"]]
    ids = [one["id"] for one in board["panels"]]
    assert len(set(places)) == len(set(ids)) == len(board["panels"])


def watched_exprs() -> list[str]:
    """All that the alerts and the panels of the board ask for."""
    found = [rule["expr"] for rule in load(ALERTS)["groups"][0]["rules"]]
    for panel in json.loads(BOARD.read_text())["panels"]:
        found += [target["expr"] for target in panel.get("targets", [])]
    return found


def test_every_alert_says_what_is_wrong_and_how_bad_it_is() -> None:
    rules = load(ALERTS)["groups"][0]["rules"]
    assert len({rule["alert"] for rule in rules}) == len(rules) == 17
    for rule in rules:
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert {"summary", "description"} == rule["annotations"].keys()


def test_promtool_takes_the_rules() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not on the PATH (Debian: apt-get install prometheus)")
    done = subprocess.run(
        [promtool, "check", "rules", str(ALERTS)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_fires_when_it_should_and_only_then() -> None:
    alerts = load(DEPLOY / "prometheus" / "alerts_test.yml")["tests"]
    told = json.dumps(alerts)
    assert all(rule["alert"] in told for rule in load(ALERTS)["groups"][0]["rules"])
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not on the PATH (Debian: apt-get install prometheus)")
    words = [promtool, "test", "rules", str(DEPLOY / "prometheus" / "alerts_test.yml")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def unit() -> configparser.SectionProxy:
    """The unit's options; of one that is written twice, the last."""
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(UNIT)
    return parser["Service"]


HARDENED = {
    **dict.fromkeys(("PrivateTmp", "PrivateDevices", "PrivateUsers", "NoNewPrivileges"), "yes"),
    **dict.fromkeys(("ProtectHome", "ProtectClock", "ProtectHostname"), "yes"),
    **dict.fromkeys(("ProtectControlGroups", "ProtectKernelLogs"), "yes"),
    **dict.fromkeys(("ProtectKernelModules", "ProtectKernelTunables"), "yes"),
    **dict.fromkeys(("RestrictSUIDSGID", "RestrictRealtime", "RestrictNamespaces"), "yes"),
    **dict.fromkeys(("LockPersonality", "RemoveIPC"), "yes"),
    "ProtectSystem": "strict",
    "ProtectProc": "invisible",
    "CapabilityBoundingSet": "",
    "RestrictAddressFamilies": "AF_UNIX AF_INET AF_INET6 AF_NETLINK",
    "SystemCallFilter": "sched_setscheduler sched_setattr setpriority",
    "SystemCallErrorNumber": "EPERM",
}


def test_the_unit_leaves_a_node_what_it_needs_and_no_more() -> None:
    service = unit()
    assert {name: service.get(name) for name in HARDENED} == HARDENED
    assert (
        "SystemCallFilter=@system-service\nSystemCallFilter=~@privileged @resources\n"
        in UNIT.read_text()
    )
    assert "ProcSubset" not in service, "the boot id and /proc/locks are read"


def test_systemd_takes_the_unit_and_finds_it_closed(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not on the PATH (Debian: apt-get install systemd)")
    command = shlex.split(unit()["ExecStart"])[0]
    copy = tmp_path / UNIT.name
    # Where it is installed is the operator's: verify asks for a program that is there.
    copy.write_text(UNIT.read_text().replace(command, shutil.which("true") or "/bin/true"))
    done = subprocess.run(
        [analyze, "verify", str(copy)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    words = [analyze, "security", "--offline=true", "--threshold=29", str(copy)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"its exposure is 3.0 or more:\n{done.stdout}{done.stderr}"


def test_the_unit_starts_a_node_that_tells_how_it_is() -> None:
    service = unit()
    assert (service["Type"], service["NotifyAccess"], service["KillMode"]) == (
        *("notify", "main", "mixed"),
    )
    assert (service["UMask"], service["StateDirectoryMode"]) == ("0077", "0700")
    codes = {int(word) for word in service["RestartPreventExitStatus"].split()}
    assert codes == {EXIT_USAGE, EXIT_DAMAGED, EXIT_LOCKED}
    command, *words = shlex.split(service["ExecStart"])
    assert Path(command).name == "keelog"
    assert words[1].startswith(f"/var/lib/{service['StateDirectory']}/")
    place = parse_http(words[words.index("--http") + 1])
    assert place is not None
    assert (place.is_loopback, place.port) == (True, METRICS_PORT)
    assert_serve_takes(words)


def test_the_image_runs_a_node_without_root_and_shows_its_ports() -> None:
    steps = dockerfile()
    assert steps["USER"] == ["10001"]
    assert any("install -d -m 0700 -o keelog" in step for step in steps["RUN"])
    assert steps["STOPSIGNAL"] == ["SIGTERM"]
    words = json.loads(steps["CMD"][0])
    assert json.loads(steps["ENTRYPOINT"][0]) == ["keelog"]
    assert words[1].startswith(steps["VOLUME"][0])
    assert_serve_takes(words)
    ports = [7850, 7851, 7852, METRICS_PORT, 10909, 10911]
    assert list(map(int, steps["EXPOSE"][0].split())) == ports
    assert words[words.index("--http") + 1].endswith(f":{METRICS_PORT}")
    health = re.search(r"CMD (\[.*\])", steps["HEALTHCHECK"][0])
    assert health is not None
    assert_serve_takes(json.loads(health[1])[1:])


def test_the_services_of_the_compose_file_find_each_other_and_their_files() -> None:
    compose = load(COMPOSE)
    services = compose["services"]
    assert services.keys() == {"setup", "node", "prometheus", "grafana"}
    needed = services["node"]["depends_on"]["setup"]["condition"]
    assert needed == "service_completed_successfully"
    assert services["prometheus"]["depends_on"]["node"]["condition"] == "service_healthy"
    build = services["node"]["build"]
    context = (COMPOSE.parent / build["context"]).resolve()
    assert (context, (context / build["dockerfile"]).is_file()) == (ROOT, True)
    command = services["node"]["command"]
    assert_serve_takes(command)
    image = json.loads(dockerfile()["CMD"][0])
    assert " ".join(command).replace("=", " ").startswith(" ".join(image))
    published = " ".join(services["node"]["ports"])
    assert "--remoting=0.0.0.0:10911" in command
    assert "--advertise=127.0.0.1" in command, "the ports are published to this machine alone"
    assert all(f":{port}:{port}" in published for port in (10909, 10911, METRICS_PORT))
    assert services["setup"]["build"] == build
    for service in services.values():
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:"), "what goes over them is not encrypted"
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert source in compose["volumes"] or (COMPOSE.parent / source).exists(), source
        for secret in service.get("secrets", []):
            assert compose["secrets"][secret] == {"file": f"secrets/{secret}"}
    scrape = load(DEPLOY / "prometheus" / "prometheus.yml")
    assert scrape["rule_files"] == [ALERTS.name]
    (target,) = scrape["scrape_configs"][0]["static_configs"][0]["targets"]
    assert target == f"node:{METRICS_PORT}"
    token = scrape["scrape_configs"][0]["authorization"]["credentials_file"]
    assert token in secrets_of(compose, "prometheus")
    gid = dockerfile()["USER"][0]
    assert services["prometheus"]["group_add"] == [gid], "it reads the token by its group"
    source = load(DEPLOY / "grafana" / "provisioning" / "datasources" / "prometheus.yml")
    assert source["datasources"][0]["url"] == "http://prometheus:9090"


def secrets_of(compose: Any, service: str) -> list[str]:
    """Where a service finds its secrets."""
    return [f"/run/secrets/{name}" for name in compose["services"][service].get("secrets", [])]


FIRST_USER = "init_authentication_user_file"


def pairs_of(words: list[str]) -> dict[str, str]:
    """The settings of a command, as -X gives them."""
    pairs = [one.removeprefix("-X") for one in words if one.startswith("-X") and one != "-X"]
    pairs += [words[at + 1] for at, one in enumerate(words) if one == "-X"]
    return dict(pair.split("=", 1) for pair in pairs)


def taken(pairs: dict[str, str]) -> Settings:
    """The settings that a node takes of them, and whether each exists."""
    known = {one.name for one in fields(Settings)}
    return load_settings(f"{name}={value}" for name, value in pairs.items() if name in known)


def test_the_compose_node_starts_with_logins_from_files_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commands of `setup`, then what the node looks at before it starts."""
    compose = load(COMPOSE)
    command = compose["services"]["node"]["command"]
    pairs = pairs_of(command)
    assert set(pairs.values()) <= set(secrets_of(compose, "node"))
    assert FIRST_USER in pairs
    monkeypatch.chdir(tmp_path)
    token = tmp_path / "http_token"
    token.write_text("0123456789abcdef")
    token.chmod(0o600)
    settings = taken(pairs | {"http_token_file": str(token)})
    words = [word for one in command for word in one.split("=", 1) if not one.startswith("-X")]
    given = dict(pairwise(words))
    serve = ServeSettings(given["--bind"], http=given["--http"], remoting=given["--remoting"])
    root, made = tmp_path / "store", CliRunner().invoke(cli, ["key", "new", "client"])
    assert made.exit_code == 0, made.output
    exposure = Exposure(served_ends(serve), (), settings)
    with pytest.raises(EndNeedsLogin):
        exposure.check(root, known_at(root))
    (script,) = compose["services"]["setup"]["command"]
    for line in script.replace("||\n", "|| ").splitlines():
        if "keelog " in line:
            words = shlex.split(line.rpartition("|| ")[2].strip())
            words = [word.replace("/run/secrets/", "") for word in words]
            done = CliRunner().invoke(cli, words[1:])
            assert done.exit_code == 0, done.output
    known = known_at(root)
    assert (known.has_server_keys, known.has_client_key) == (True, True)
    if makes_first_user(settings):
        exposure.check(root, known)


def test_the_drop_in_of_the_unit_hands_files_on_and_opens_nothing(tmp_path: Path) -> None:
    text = (DEPLOY / "systemd" / "network.conf").read_text()
    loaded = dict(re.findall(r"^LoadCredential=([^:]+):(.+)$", text, re.MULTILINE))
    commands = re.findall(r"^ExecStart=(.*)$", text, re.MULTILINE)
    assert commands[0] == "", "the unit's own is taken back first"
    words = shlex.split(commands[1])
    assert_serve_takes(words[1:])
    assert set(pairs_of(words).values()) == {f"%d/{name}" for name in loaded}
    assert "--open" not in text
    assert words[:3] == shlex.split(unit()["ExecStart"])[:3]
