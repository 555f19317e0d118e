"""Memory for answers: used again as soon as nobody holds it, never before."""

from node.store.log import reader
from node.store.log.reader import BUFFER_BYTES_MIN, BUFFERS_BYTES_MAX, Buffers


def test_memory_is_lent_again_when_the_last_view_of_it_is_gone() -> None:
    pool = Buffers()
    first = pool.take(BUFFER_BYTES_MIN)
    place = first.__array_interface__["data"]
    view = first.data[:10]
    del first
    assert pool.take(BUFFER_BYTES_MIN).__array_interface__["data"] != place
    rest = view[3:]
    del view
    assert pool.take(BUFFER_BYTES_MIN).__array_interface__["data"] != place
    del rest
    found = [pool.take(BUFFER_BYTES_MIN) for _ in range(2)]
    assert place in [array.__array_interface__["data"] for array in found]


def test_two_who_hold_memory_never_share_it() -> None:
    pool = Buffers()
    held = [pool.take(BUFFER_BYTES_MIN + number) for number in range(50)]
    for number, array in enumerate(held):
        array[:] = number
    assert all((array == number).all() for number, array in enumerate(held))
    assert [len(array) - BUFFER_BYTES_MIN for array in held] == list(range(50))


def test_no_more_is_kept_than_its_limit() -> None:
    pool = Buffers()
    held = [pool.take(5 << 20) for _ in range(4)]
    assert pool.bytes <= BUFFERS_BYTES_MAX
    assert [len(array) for array in held] == [5 << 20] * 4


def test_blocks_that_are_too_small_by_now_make_room() -> None:
    pool = Buffers()
    for _ in range(2):
        held = [pool.take(1 << 20) for _ in range(reader.BUFFERS_BYTES_MAX >> 20)]
        assert pool.bytes == BUFFERS_BYTES_MAX
        del held
    large = pool.take(9 << 20)
    assert pool.bytes == 16 << 20
    assert len(large) == 9 << 20
