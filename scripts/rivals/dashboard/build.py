"""The jar of RocketMQ's Dashboard: one that is named, or one that Maven makes of its source.

No package registry has the Dashboard. KEELOG_ROCKETMQ_DASHBOARD names a jar of it, or a folder with
its source; else the source of the release comes from GitHub. Its pages are left out: what is
compared is the JSON that they show.
"""

import os
import shutil
import subprocess
from pathlib import Path

from scripts.rivals.rocketmq import BUILD_S, RivalMissing, missing

SWITCH = "KEELOG_ROCKETMQ_DASHBOARD"
RELEASE = "rocketmq-dashboard-2.1.0"
SOURCE = "https://github.com/apache/rocketmq-dashboard.git"
BUILT = Path(__file__).parent / "target"
CLONE_S = 120
_WITHOUT = (
    "-DskipTests", "-Dmaven.test.skip=true", "-Dcheckstyle.skip", "-Drat.skip", "-Djacoco.skip",
    "-Dskip.installnodenpm", "-Dskip.npm",
)  # fmt: skip


def dashboard_jar() -> Path:
    """The jar, built when it must be. Raises RivalMissing when it cannot be had here."""
    if why := missing():
        raise RivalMissing(why)
    named = os.environ.get(SWITCH)
    if named and named.endswith(".jar"):
        jar = Path(named)
        if not jar.is_file():
            raise RivalMissing(f"{SWITCH} names {named}, which is no file")
        return jar
    BUILT.mkdir(exist_ok=True)
    source = Path(named) if named else BUILT / "source"
    jar = BUILT / ("of-a-folder.jar" if named else f"{RELEASE}.jar")
    if named or not jar.is_file():
        if not named:
            _clone(source)
        elif not (source / "pom.xml").is_file():
            raise RivalMissing(f"{SWITCH} names {named}, which has no pom.xml")
        shutil.copyfile(_build(source), jar)
    return jar


def _clone(source: Path) -> None:
    shutil.rmtree(source, ignore_errors=True)
    command = ["git", "clone", "--quiet", "--depth", "1", "--branch", RELEASE, SOURCE, str(source)]
    try:
        subprocess.run(command, capture_output=True, text=True, timeout=CLONE_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        raise RivalMissing(
            f"the Dashboard's source cannot be cloned: {str(said).strip()[-300:]}; name a jar"
            f" or a folder with the source in {SWITCH}"
        ) from error


def _build(source: Path) -> Path:
    # The build copies this folder, where npm would have put the pages.
    (source / "frontend-new" / "build").mkdir(parents=True, exist_ok=True)
    command = ["mvn", "-q", "-B", "-f", str(source / "pom.xml"), *_WITHOUT, "package"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_S, check=False)
    jars = sorted((source / "target").glob("rocketmq-dashboard-*.jar"))
    if done.returncode or not jars:
        raise RivalMissing(
            f"Maven could not build {source}: {(done.stdout + done.stderr).strip()[-800:]}"
        )
    return jars[-1]
