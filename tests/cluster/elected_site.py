"""Name servers of RocketMQ 5.5.0 with controllers in them."""

from collections.abc import Mapping
from pathlib import Path

from node.supervisor.bind import free_ports
from scripts.rivals.rocketmq import Jvm, class_path, start_name_server

_SCAN_MS = 1000
"""How often a controller looks for brokers without heart-beats; 5 s by default."""


class ControllerSite:
    """Name servers with a controller each. Gone behind the context."""

    def __init__(self, home: Path, count: int, kind: str = "DLedger") -> None:
        """`kind` is DLedger or jRaft."""
        self._home = home
        self._kind = kind
        self.classes = class_path()
        first = free_ports(3 * count)
        self._places = [f"127.0.0.1:{first + number}" for number in range(count)]
        self._controllers = [f"127.0.0.1:{first + count + number}" for number in range(count)]
        self._rafts = [f"127.0.0.1:{first + 2 * count + number}" for number in range(count)]
        self.jvms: list[Jvm] = []

    def __enter__(self) -> "ControllerSite":
        for number in range(len(self._places)):
            self.jvms.append(self.start(number))
        return self

    def start(self, number: int) -> Jvm:
        """Starts one of them, for the first time or again."""
        home = self._home / f"namesrv-{number}"
        return start_name_server(self.classes, home, self._places[number], self._settings(number))

    def __exit__(self, *_: object) -> None:
        for jvm in self.jvms:
            jvm.kill()

    @property
    def name_servers(self) -> str:
        """As RocketMQ's clients take them."""
        return ";".join(self._places)

    @property
    def controllers(self) -> str:
        """As `--controller` takes them."""
        return ";".join(self._controllers)

    def _settings(self, number: int) -> Mapping[str, object]:
        common = {
            "enableControllerInNamesrv": "true",
            "controllerType": self._kind,
            "controllerStorePath": self._home / f"controller-{number}",
            "scanNotActiveBrokerInterval": _SCAN_MS,
        }
        if self._kind == "jRaft":
            return {
                **common,
                "jRaftGroupId": "keels",
                "jRaftServerId": self._rafts[number],
                "jRaftInitConf": ",".join(self._rafts),
                "jRaftControllerRPCAddr": ",".join(self._controllers),
            }
        peers = (f"n{at}-{place}" for at, place in enumerate(self._controllers))
        return {
            **common,
            "controllerDLegerGroup": "keels",
            "controllerDLegerPeers": ";".join(peers),
            "controllerDLegerSelfId": f"n{number}",
            "mappedFileSize": 4 << 20,
        }
