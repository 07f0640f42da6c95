"""What is told of other people's errors is one line."""

import pytest

from dsv41_serving.errors import first_line


@pytest.mark.parametrize(
    ("error", "said"),
    [(ValueError("one\ntwo"), "one"), (TimeoutError(), "TimeoutError"), (OSError(2, "gone"), "[Errno 2] gone")],
)
def test_the_first_line_or_the_type_of_a_silent_error(error: Exception, said: str) -> None:
    assert first_line(error) == said
