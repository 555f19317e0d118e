"""The node that these tests share has a gateway: pages show consumer groups and delays."""

from collections.abc import Mapping

import pytest


@pytest.fixture(scope="session")
def keelog_settings() -> Mapping[str, object]:
    return {"idempotent_window": 600, "serve.remoting": "127.0.0.1:0"}
