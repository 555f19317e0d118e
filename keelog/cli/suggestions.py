"""What people type who know other tools, and what it is called here."""

COMMANDS = {
    "start": "serve",
    "run": "serve",
    "server": "serve",
    "broker": "serve",
    "node": "serve",
    "stop": "serve",
    "list": "ls",
    "delete": "rm",
    "remove": "rm",
    "del": "rm",
    "add": "create",
    "new": "create",
    "show": "describe",
    "info": "describe",
    "send": "produce",
    "publish": "produce",
    "pub": "produce",
    "put": "produce",
    "read": "consume",
    "tail": "consume",
    "subscribe": "consume",
    "sub": "consume",
    "fetch": "consume",
    "topics": "topic",
    "message": "msg",
    "check": "verify",
    "fsck": "verify",
    "ping": "health",
}
"""A word, and the command that does it; it counts where there is such a command."""

CONSUME = {
    "--follow": "leave it out: keelog consume waits for more, unless -e ends it",
    "--tail": "--from end  reads what comes from now on",
    "--offset": "--from 123, -10, -15m: keelog help places",
    "--since": "--from -15m",
    "--start": "--from start",
    "--begin": "--from start",
    "--beginning": "--from start",
    "--from-beginning": "--from start, which is the default",
    "--all": "--from start, which is the default",
    "--last": "--from -10",
    "--until": "--from start:2026-11-20T10:00  reads up to a place",
    "--to": "--from start:2026-11-20T10:00  reads up to a place",
    "--limit": "--count N",
    "--max": "--count N",
    "--max-messages": "--count N",
    "--exit": "--until-end",
    "--end": "--until-end",
    "--exit-at-end": "--until-end",
    "--no-follow": "--until-end",
    "--partition": "--queue N",
    "--filter": "--tags 'A || B'",
    "--tag": "--tags 'A || B'",
    "--format-string": r"--template '%o %k %v\n'",
    "--group": "--cursor NAME  keeps the place of one reader under a name",
    "--name": "--cursor NAME",
    "--durable": "--cursor NAME",
    "--skip-damaged": "--on-damage skip, which is the default",
}
PRODUCE = {
    "--partition": "--queue N",
    "--tag": "--tags T",
    "--keys": "--key K, once for each",
    "--property": "-p NAME=VALUE",
    "--header": "-p NAME=VALUE",
    "--message": "keelog produce TOPIC MESSAGE",
    "--body": "keelog produce TOPIC MESSAGE",
    "--data": "keelog produce TOPIC MESSAGE",
    "--silent": "--quiet",
    "--json": "--jsonl reads a JSON object a line; --format json is the form of the receipts",
    "--delimiter": "--file F  sends a whole file as one message",
    "-D": "--file F  sends a whole file as one message",
}
OPTIONS = {"keelog consume": CONSUME, "keelog produce": PRODUCE}
"""Options by command: what is typed, and what to write."""
_CONTEXT = ("-c", "--context")


def for_option(path: str, option: str) -> str:
    """What to write where a command has no such option; empty for no idea."""
    if option in _CONTEXT:
        return f"keelog -c NAME {path.removeprefix('keelog ')} …  (-c goes before the command)"
    return OPTIONS.get(path, {}).get(option, "")
