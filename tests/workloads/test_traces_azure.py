"""Reader of the Azure traces: oracle sums of the real files, and odd bytes written on purpose."""

from __future__ import annotations

from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specfleet.workloads.traces.azure import read_azure
from specfleet.workloads.traces.report import TraceError
from specfleet.workloads.traces.timestamps import parse_stamp

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def written(folder: Path, text: str | bytes) -> Path:
    """A file holding exactly these bytes."""
    path = folder / "trace.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def rows(*stamps: str, tokens: str = "10,2") -> str:
    """A trace with these time stamps."""
    return HEADER + "".join(f"{stamp},{tokens}\n" for stamp in stamps)


@pytest.mark.parametrize(
    ("name", "count", "prompt", "output", "first", "last"),
    [
        (
            "code.tail8200",
            8200,
            16_736_878,
            229_678,
            "2023-11-16 18:21:27.2155670",
            "2023-11-16 19:14:19.9280160",
        ),
        (
            "conv.head7500",
            7500,
            8_848_995,
            1_813_018,
            "2023-11-16 18:15:46.6805900",
            "2023-11-16 18:39:49.8893520",
        ),
    ],
)
def test_the_real_files_match_their_oracle(
    shared: Path, name: str, count: int, prompt: int, output: int, first: str, last: str
) -> None:
    requests, report = read_azure(shared / f"traces/azure-2023/AzureLLMInferenceTrace_{name}.csv")
    assert report.rows_read == report.rows_kept == len(requests) == count
    assert not report.dropped
    assert int(requests.prompt_tokens.sum()) == prompt
    assert int(requests.output_tokens.sum()) == output
    assert (report.first_time, report.last_time) == (first, last)
    span = datetime.fromisoformat(last[:-1]) - datetime.fromisoformat(first[:-1])
    assert requests.arrival_s[0] == 0.0
    assert requests.arrival_s[-1] == report.span_s == span.total_seconds()
    assert (requests.max_tokens == requests.output_tokens.max()).all()


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("last", ["", "{end}", "{end}{end}"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_line_ends_byte_marks_and_the_last_newline_do_not_matter(
    tmp_path: Path, end: str, last: str, mark: bytes
) -> None:
    lines = [HEADER.strip(), "2023-11-16 18:17:03.9799600,4808,10", "2023-11-16 18:17:04.0312540,3180,8"]
    path = written(tmp_path, mark + (end.join(lines) + last.format(end=end)).encode())
    requests, report = read_azure(path)
    assert requests.arrival_s.tolist() == [0.0, 0.051294]
    assert requests.prompt_tokens.tolist() == [4808, 3180] and requests.output_tokens.tolist() == [10, 8]
    assert report.rows_read == 2


def test_a_seventh_digit_is_not_lost(tmp_path: Path) -> None:
    path = written(tmp_path, rows("2023-11-16 18:17:03.9999999", "2023-11-16 18:17:04.0000000"))
    assert read_azure(path).requests.arrival_s.tolist() == [0.0, 1e-7]


def test_offsets_and_missing_fractions_of_2024_are_read(tmp_path: Path) -> None:
    stamps = "2024-05-10 00:00:00.009930+00:00", "2024-05-10 00:00:01+00:00", "2024-05-10T02:00:01.5+02:00"
    trace = read_azure(written(tmp_path, rows(*stamps, "2024-05-10 00:00:02Z")))
    assert trace.requests.arrival_s.tolist() == [0.0, 0.99007, 1.49007, 1.99007]
    assert trace.report.notices == ()


def test_columns_are_found_by_name(tmp_path: Path) -> None:
    text = "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n2024-10-15 00:00:00,3,700,20\n"
    trace = read_azure(written(tmp_path, text))
    assert trace.requests.prompt_tokens.tolist() == [700]
    assert "columns not used: NumImages" in trace.report.notices


def test_stamps_without_a_zone_are_taken_as_utc_and_said_so(tmp_path: Path) -> None:
    trace = read_azure(written(tmp_path, rows("2023-11-16 18:17:03")))
    assert trace.report.notices == ("1 time stamps name no zone; taken as UTC",)


def test_unusable_rows_are_dropped_with_reason_and_first_line(tmp_path: Path) -> None:
    day = "2023-11-16 18:17:0"
    text = HEADER + "\n".join(
        [
            f"{day}1,5,1",
            f"{day}2,0,1",
            f"{day}3,5,0",
            f"{day}3,5,",
            f"{day}3,5",
            f"{day}3,-5,1",
            f"{day}3,5.5,1",
            "2023-11-31 18:17:03,5,1",
            "yesterday,5,1",
            f"{day}4,6,2",
        ]
    )
    trace = read_azure(written(tmp_path, text))
    assert trace.requests.prompt_tokens.tolist() == [5, 6]
    assert [(drop.reason, drop.rows, drop.first_line) for drop in trace.report.dropped] == [
        ("zero prompt or output tokens", 2, 3),
        ("a token count is missing", 1, 5),
        ("not as many fields as the header", 1, 6),
        ("a token count is not a whole number of at most 9 digits", 2, 7),
        ("unreadable time stamp", 2, 9),
    ]
    assert trace.report.rows_read == 10


def test_a_tiny_step_back_is_sorted_stably_with_a_notice(tmp_path: Path) -> None:
    day = "2023-11-16 18:17:0"
    text = HEADER + f"{day}1.5,1,1\n{day}1.0,2,1\n{day}1.5,3,1\n{day}9.0,4,1\n"
    trace = read_azure(written(tmp_path, text))
    assert trace.requests.arrival_s.tolist() == [0.0, 0.5, 0.5, 8.0]
    assert trace.requests.prompt_tokens.tolist() == [2, 1, 3, 4]
    assert trace.report.first_time == f"{day}1.0"
    assert "1 rows step back in time by less than 1 s; sorted" in trace.report.notices


def test_a_reset_clock_is_an_error_that_names_the_line(tmp_path: Path) -> None:
    path = written(tmp_path, rows("2023-11-16 18:17:09", "2023-11-16 18:17:08"))
    with pytest.raises(
        TraceError, match=r"goes back by 1 s, from .*:09 \(line 2\) to .*:08 \(line 3\); if two"
    ):
        read_azure(path)


def test_speed_two_halves_every_gap_and_the_report_keeps_the_recorded_time(tmp_path: Path) -> None:
    path = written(tmp_path, rows("2023-11-16 18:17:01", "2023-11-16 18:17:02", "2023-11-16 18:17:05"))
    trace = read_azure(path, speed=2.0)
    assert trace.requests.arrival_s.tolist() == [0.0, 0.5, 2.0]
    assert trace.report.span_s == 4.0
    assert "0.500 requests/s, CV of gaps 0.50; replayed at 1.000 requests/s" in trace.report.render()


def test_a_window_counts_from_the_first_row_and_is_rebased(tmp_path: Path) -> None:
    path = written(tmp_path, rows(*(f"2023-11-16 18:17:0{second}" for second in range(8))))
    trace = read_azure(path, window=(2, 5))
    assert trace.requests.arrival_s.tolist() == [0.0, 1.0, 2.0]
    assert trace.report.first_time.endswith("02")
    assert trace.report.dropped[0] == ("outside the window asked for", 5, 2)


def test_a_limit_stops_reading(tmp_path: Path) -> None:
    path = written(tmp_path, rows(*(f"2023-11-16 18:17:0{second}" for second in range(8))))
    trace = read_azure(path, limit=3)
    assert trace.report.rows_read == trace.report.rows_kept == len(trace.requests) == 3
    assert "stopped at the limit of 3 rows" in trace.report.notices


def test_outputs_stop_by_themselves_below_the_largest_or_are_cut_at_a_given_cap(tmp_path: Path) -> None:
    path = written(tmp_path, HEADER + "2023-11-16 18:17:01,5,30\n2023-11-16 18:17:01,5,7\n")
    requests, _ = read_azure(path)
    assert requests.max_tokens.tolist() == [30, 30] and requests.output_tokens.tolist() == [30, 7]
    requests, report = read_azure(path, max_tokens=10)
    assert requests.max_tokens.tolist() == [10, 10] and requests.output_tokens.tolist() == [10, 7]
    assert "1 outputs cut at max_tokens 10" in report.notices


@given(st.lists(st.sampled_from(["5,1", "0,1", "5,0", "5,", ",", "x,1", "5", "5,1,9"]), max_size=30))
def test_rows_read_are_kept_or_dropped(tmp_path_factory: pytest.TempPathFactory, tokens: list[str]) -> None:
    text = HEADER + "".join(f"2023-11-16 18:17:01,{cells}\n" for cells in ["5,1", *tokens])
    _, report = read_azure(written(tmp_path_factory.mktemp("trace"), text))
    assert report.rows_read == len(tokens) + 1
    assert report.rows_read == report.rows_kept + sum(drop.rows for drop in report.dropped)
    assert report.rows_kept == 1 + tokens.count("5,1")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty; expected requests, one a line"),
        (b"\n\n", "the file is empty"),
        (HEADER.encode(), "a header and no rows"),
        (
            rows("2023-11-16 18:17:01", tokens="0,0").encode(),
            r"none of 1 rows is usable: 1 zero .*\(first at line 2\)",
        ),
        (b"arrived_at,num_prefill_tokens\n0.0,5\n", "found arrived_at, num_prefill_tokens; name its columns"),
        (b"TIMESTAMP,ContextTokens,ContextTokens,GeneratedTokens\n", "once each"),
        (b"\x1f\x8b\x08\x00\xff\xfe", "not a whole gzip file; fetch it again"),
    ],
)
def test_a_file_that_is_no_trace_is_an_error(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(TraceError, match=message):
        read_azure(written(tmp_path, content))


def test_a_missing_file_and_a_folder_are_errors(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no such trace file; check the path"):
        read_azure(tmp_path / "nowhere.csv")
    with pytest.raises(TraceError, match="cannot be read"):
        read_azure(tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"speed": 0.0}, "speed must be"),
        ({"limit": 0}, "limit must be"),
        ({"window": (5.0, 5.0)}, "window must be"),
        ({"max_tokens": 0}, "max_tokens must be"),
    ],
)
def test_options_out_of_range_are_refused(tmp_path: Path, options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_azure(tmp_path, **options)


def test_the_report_says_what_was_read_kept_and_dropped(tmp_path: Path) -> None:
    text = HEADER + "2023-11-16 18:17:01,1000,20\n2023-11-16 18:17:02,0,0\n2023-11-16 18:17:05,3000,40\n"
    path = written(tmp_path, text)
    assert read_azure(path).report.render().splitlines() == [
        f"{path}: Azure LLM inference trace",
        "rows      3 read, 2 kept, 1 dropped",
        "          1 dropped: zero prompt or output tokens (first at line 3)",
        "time      2023-11-16 18:17:01 to 2023-11-16 18:17:05, span 4.000 s",
        "arrivals  0.250 requests/s",
        "prompt    mean 2,000.0, p50 2,000, p99 2,980, max 3,000 tokens",
        "output    mean 30.0, p50 30, p99 40, max 40 tokens",
        "notice    2 time stamps name no zone; taken as UTC",
    ]


def test_a_single_row_has_no_rate(tmp_path: Path) -> None:
    report = read_azure(written(tmp_path, rows("2023-11-16 18:17:01"))).report
    assert report.request_rate is None and "all at the same time" in report.render()


@given(st.datetimes(datetime(1970, 1, 1), datetime(2200, 1, 1)), st.integers(0, 9))
def test_a_stamp_is_exact_to_the_nanosecond(moment: datetime, digits: int) -> None:
    fraction = f"{moment.microsecond:06d}123"[:digits]
    text = f"{moment:%Y-%m-%d %H:%M:%S}" + (f".{fraction}" if digits else "")
    whole = moment.replace(microsecond=0, tzinfo=UTC).timestamp()
    expected = int(whole) * 10**9 + int(Fraction(int(fraction or 0), 10 ** len(fraction)) * 10**9)
    assert parse_stamp(text) == (expected, False)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1700159586",
        "2023-11-16",
        "2023-02-29 00:00:00",
        "2023-11-16 24:00:00",
        "2023-11-16 18:17:03.",
        "2023-11-16 18:17:03.0123456789",
        "2023-11-16 18:17:03+99:00",
        "9999-01-01 00:00:00",
    ],
)
def test_what_is_no_time_stamp_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_stamp(text)


def test_zones_move_the_clock() -> None:
    utc = parse_stamp("2024-05-10 10:00:00Z")[0]
    for text in ("2024-05-10 12:00:00+02:00", "2024-05-10 12:00:00+0200", "2024-05-10T05:30:00-04:30"):
        assert parse_stamp(text) == (utc, True)
    assert np.int64(utc) == 1_715_335_200 * 10**9


@pytest.mark.parametrize(
    ("text", "counted"), [("2262-04-11 23:47:15.999999999", True), ("2262-04-11 23:47:16", False)]
)
def test_a_stamp_is_counted_as_long_as_64_bits_hold_its_nanoseconds(text: str, counted: bool) -> None:
    if counted:
        nanoseconds, _ = parse_stamp(text)
        assert nanoseconds == 9_223_372_035_999_999_999 < 1 << 63
    else:
        with pytest.raises(ValueError, match="64 bits"):
            parse_stamp(text)
