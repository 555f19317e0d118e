"""`keelog diag`: one file with what helps to find out what is wrong."""

from pathlib import Path

import click

from keelog.cli.failures import OK, doing
from keelog.cli.options import command, node_option, output_options
from keelog.cli.output import Output


@command("diag")
@click.argument("store", metavar="[DIR]", required=False, type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--out",
    required=True,
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The zip file to make; one that is there already is left alone.",
)
@click.option(
    "--log",
    "log_file",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="What the node wrote to stderr: its last 1000 lines go in, credentials blacked out. Not"
    " needed where stderr is a file: the node knows it.",
)
@node_option
@output_options
def diag(store: Path | None, out: Path, log_file: Path | None, node: str, output: Output) -> int:
    """Gathers versions, settings, status, metrics, the files' names and sizes, and the machine.

    No message goes in, nor its key, tag or properties, and no credential; topics go in. Name the
    store's DIR when the node does not run. What could not be had is named.

    Example: keelog diag -o keelog-diag.zip

    Example: keelog diag ./store -o keelog-stopped.zip
    """
    from keelog.diag.collect import gather

    with doing(f"cannot write {out}"):
        bundle = gather(node, store, log_file)
        bundle.write(out)
    document = {
        "path": str(out),
        "bytes": out.stat().st_size,
        "files": list(bundle.files),
        "problems": bundle.problems,
    }
    rows = [{"file": name, "bytes": len(data)} for name, data in bundle.files.items()]
    problems = "".join(f"\nmissing: {problem}" for problem in bundle.problems)
    output.document(document, table=rows, title=f"{out}{problems}\n")
    return OK
