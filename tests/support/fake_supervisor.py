"""A supervisor over fake children: `python -m tests.support.fake_supervisor DIR [name=value]…`."""

import sys
from pathlib import Path

from node.supervisor.loop import serve
from node.supervisor.options import Options, ServeSettings
from node.supervisor.plan import ChildRole, RestartLimits
from protocol.errors import MqError


def main() -> int:
    root, *pairs = sys.argv[1:]
    numbers = {name: float(value) for name, _, value in (pair.partition("=") for pair in pairs)}
    options = Options(
        root=Path(root),
        serve=ServeSettings(bind="tcp://127.0.0.1:0", queue_workers=2),
        limits=RestartLimits(
            backoff_s_min=numbers.get("backoff_s_min", 0.01),
            crashes_max=int(numbers.get("crashes_max", 5)),
            full_disk_s=numbers.get("full_disk_s", 0.05),
            settle_s_max=numbers.get("settle_s_max", 10),
            stop_s_max=numbers.get("stop_s_max", 10),
            silence_s_max=numbers.get("silence_s_max", 3600),
        ),
        version="test",
        modules=dict.fromkeys(ChildRole, "tests.support.fake_child"),
    )
    try:
        return serve(options)
    except MqError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return 99


if __name__ == "__main__":
    sys.exit(main())
