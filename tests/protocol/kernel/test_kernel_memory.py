"""The kernel on hostile bytes, under the sanitizers: it never reaches outside what it was given."""

import subprocess
from pathlib import Path

import pytest

import hatch_build
from protocol.ids import Host
from protocol.kernel import loader
from tests.protocol.records import Draft, pack_log

HERE = Path(__file__).parent
FLAGS = (
    *("-g", "-O1", "-std=gnu11", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    f"-I{Path(loader.__file__).parent}",
)
ROUNDS = 30_000
SOAK_ROUNDS = 300_000
SEEDS = [
    Draft(
        topic=b"orders", body=b"b" * 128, properties=b"TAGS\1a\2KEYS\1x y\2UNIQ_KEY\1u\2", crc=True
    ),
    Draft(topic="名".encode(), body=b"", properties=b"a\1b\2a\1c\2TAGS", v2=True),
    Draft(topic=b"", body=b"xyz", born_host=Host(bytes(16), 1), store_host=Host(bytes(16), 2)),
    Draft(topic=b"%RETRY%g", body=b"q" * 20, properties=b"KEYS\1k\2", crc=True),
    Draft(topic="\U00010348".encode(), body=b"last"),
]


@pytest.fixture(scope="module")
def fuzzer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The fuzzer, compiled with the sanitizers, beside its seeds."""
    folder = tmp_path_factory.mktemp("kernel")
    (folder / "seeds").write_bytes(pack_log(SEEDS))
    why = hatch_build.compile_kernel(HERE / "kernel_fuzz.c", folder / "fuzz", FLAGS)
    if why:
        pytest.skip(f"no compiler with sanitizers: {why}")
    return folder / "fuzz"


def run(fuzzer: Path, rounds: int, seed: int) -> None:
    command = [str(fuzzer), str(fuzzer.with_name("seeds")), str(rounds), str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"rounds {rounds}, seed {seed}: {done.stderr[-3000:]}"


def test_damaged_bytes_and_wild_positions_reach_nothing_outside(fuzzer: Path) -> None:
    run(fuzzer, ROUNDS, 1)


@pytest.mark.soak
def test_for_minutes_they_reach_nothing_outside(fuzzer: Path) -> None:
    for seed in range(2, 12):
        run(fuzzer, SOAK_ROUNDS, seed)
