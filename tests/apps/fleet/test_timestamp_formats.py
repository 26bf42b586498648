"""Timestamps outside the calendar are rejected, independent of the machine's clock."""

import pytest

from boathook_fleet.timestamp_formats import read_timestamp


@pytest.mark.parametrize("absurd", [-(10**18), -1e18, -1e308, 10**299, 1e308, "9999999999999999", -1, 0])
def test_an_invalid_number_is_no_timestamp(absurd):
    assert read_timestamp(absurd) is None
