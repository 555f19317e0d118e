"""`keelog serve`: a node in the foreground."""

from pathlib import Path

import click

from keelog.cli.contexts import DEFAULT_NODE
from keelog.cli.failures import doing
from keelog.cli.options import command, settings_options, version


@command("serve")
@click.argument("directory", metavar="DIR", type=click.Path(readable=False, path_type=Path))
@click.option(
    "--bind", default=DEFAULT_NODE, show_default=True, metavar="URL", help="The control socket."
)
@click.option("--queue-workers", default=1, show_default=True, metavar="N")
@click.option("--readers", default=1, show_default=True, metavar="M")
@click.option(
    "--http",
    default="",
    envvar="KEELOG_HTTP",
    metavar="ADDRESS",
    help="Where /metrics, /livez, /readyz and /healthz are, as 9875 or 0.0.0.0:9875; KEELOG_HTTP"
    " says it too. Default: nowhere.",
)
@click.option(
    "--restart-limit",
    default=5,
    show_default=True,
    metavar="N",
    help="A process that ends so often within a minute is given up; 0: never.",
)
@settings_options
def serve(  # noqa: PLR0913  (the options)
    directory: Path,
    bind: str,
    queue_workers: int,
    readers: int,
    http: str,
    restart_limit: int,
    pairs: tuple[str, ...],
) -> int:
    """Runs a node on the store in DIR, which is made when absent.

    It stays in the foreground; SIGTERM or Ctrl-C stops it in order. One line `ready …` on stderr
    says that appends are accepted. The writer listens one port above --bind, the readers above
    it; port 0 takes free ones.

    Example: keelog serve ./store

    Example: keelog serve ./store --http 9875

    Example: keelog serve ./store --bind tcp://127.0.0.1:0 -X store.flush_disk_type=SYNC_FLUSH
    """
    from node.supervisor import serve
    from node.supervisor_options import Options
    from node.supervisor_plan import Limits

    options = Options(
        root=directory.resolve(),
        bind=bind,
        queue_workers=queue_workers,
        readers=readers,
        pairs=pairs,
        http=http,
        limits=Limits(crashes_max=restart_limit),
        version=version(),
    )
    with doing(f"cannot serve {directory}"):
        return serve(options)
