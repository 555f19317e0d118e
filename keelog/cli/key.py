"""`keelog key`: the keys of nodes and of their clients, as files (docs/curve.md)."""

from pathlib import Path

import click

from keelog.cli.contexts import NAME
from keelog.cli.failures import doing
from keelog.cli.options import CliGroup, output_options
from keelog.cli.output import Output, say
from protocol.access.key_files import PUBLIC_SUFFIX, SECRET_SUFFIX
from protocol.errors import BadRequest, NotFound

_directory = click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))


@click.group("key", cls=CliGroup)
def key() -> None:
    """Makes key pairs: of a node, which then encrypts what goes over TCP and lets in known keys
    alone, and of programs.

    A secret key is in a file that its owner alone may read, and is never shown.

    Example: keelog key init ./store

    Example: keelog key new billing
    """


@key.command("init")
@_directory
@output_options
def init(directory: Path, output: Output) -> None:
    """Gives the node on DIR keys, which count from its next start on; prints the public one.

    Keys that are there stay. To go on without: stop the node, and remove DIR/keelog/auth/server.*

    Example: keelog key init ./store
    """
    # Imported here, as below: ZeroMQ takes longer to import than most commands run.
    from node.access import curve
    from node.store.identity.places import create_store
    from node.supervisor.before_start import open_directory

    with doing(f"cannot make keys for the node on {directory}"):
        open_directory(directory)
        create_store(directory)
        had_keys = curve.server_keys(directory) is not None
        keys = curve.make_server_keys(directory)
    if not had_keys:
        say("from its next start on the node takes clients with known keys alone")
    output.document({"public_key": keys.public, "file": str(_public_file(directory))})


@key.command("new")
@click.argument("name")
@click.option(
    "--folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=Path(),
    help="Where the files are made; default: here.",
)
@output_options
def new(name: str, folder: Path, output: Output) -> None:
    """Makes a key pair for a program: NAME.key_secret, which it keeps, and NAME.key for the node.

    Example: keelog key new billing
    """
    from node.access import curve

    with doing(f"cannot make the key pair {name[:80]!a}"):
        if not NAME.fullmatch(name):
            raise BadRequest(
                f"{name[:80]!a} is not a name of a file", "use letters, digits, dots and dashes"
            )
        keys = curve.write_pair(folder, name)
    say(f"{folder / (name + SECRET_SUFFIX)} is secret: the program alone needs it")
    output.document({"public_key": keys.public, "file": str(folder / (name + PUBLIC_SUFFIX))})


@key.command("show")
@_directory
@output_options
def show(directory: Path, output: Output) -> None:
    """Prints the public key of the node on DIR, which its clients need as server_key.

    Example: keelog key show ./store
    """
    from node.access import curve

    with doing(f"cannot show the key of the node on {directory}"):
        keys = curve.server_keys(directory)
        if keys is None:
            raise NotFound(f"the node on {directory} has no keys", f"keelog key init {directory}")
    output.document({"public_key": keys.public, "file": str(_public_file(directory))})


def _public_file(directory: Path) -> Path:
    from node.access import curve
    from node.access.users_file import auth_dir

    return auth_dir(directory) / f"{curve.SERVER}{PUBLIC_SUFFIX}"
