"""Times and rates of two runs of a command of mqadmin do not make them differ."""

from tests.clients.mqadmin.side_by_side import masked, without_rates


def test_messages_a_second_of_a_group_do_not_count_and_its_lag_does() -> None:
    def row(rate: int, lag: int) -> list[str]:
        line = (
            f"{'billing':64}  {1:<6}  {'V5_5_0':24} {'PUSH':5}  {'CLUSTERING':14}  {rate:<7}  {lag}"
        )
        return without_rates(masked(line, {}))

    assert row(2, 7) == row(1, 7)
    assert row(2, 7) != row(2, 8)


def test_how_long_a_consumer_took_does_not_count_and_its_result_does() -> None:
    def line(took: int, result: str) -> list[str]:
        text = f"ConsumeMessageDirectlyResult [consumeResult={result}, spentTimeMills={took}]"
        return masked(text, {})

    assert line(0, "CR_SUCCESS") == line(1, "CR_SUCCESS")
    assert line(0, "CR_SUCCESS") != line(0, "CR_LATER")
