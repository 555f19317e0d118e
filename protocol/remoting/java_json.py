"""JSON as RocketMQ's Java writes it, in bodies and in configuration files.

Integer keys have no quotes, and a map whose keys are objects has the objects themselves as keys:
`{"offsetTable":{{"brokerName":"b","queueId":3,"topic":"T"}:7}}`.
"""

import json
import re
from typing import Any

# The quote at the end may be missing: what begins a string is never read again as something else.
_STRING = r'"(?:[^"\\]++|\\.)*+"?'
_STRING_OR_ODD_KEY = re.compile(
    rf'({_STRING})|(?<=[{{,])(\s*+)(?:(-?[0-9]++)|(\{{(?:[^{{}}"]++|{_STRING})*+\}}))(\s*+):',
    re.DOTALL,
)


def parse_java_json(text: str) -> Any:
    """Parses JSON as Java writes it. A key that is an integer or an object becomes its text.

    Raises ValueError, RecursionError.
    """
    try:
        return json.loads(text)
    except ValueError:
        return json.loads(_STRING_OR_ODD_KEY.sub(_quoted, text))


def _quoted(found: re.Match[str]) -> str:
    if found[1]:
        return found[1]
    key = f'"{found[3]}"' if found[3] else json.dumps(found[4])
    return f"{found[2]}{key}{found[5]}:"


def sound_text(text: str) -> str:
    """Returns a text that can be UTF-8: half a surrogate pair becomes `?`, as in Java."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
