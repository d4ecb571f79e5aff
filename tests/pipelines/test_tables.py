"""The reader of text tables returns the rows of all lines, and names the line of anything it cannot parse."""

import io

import pytest

from plumbline.operators.base.errors import SourceError
from plumbline.pipelines.base.tables import Rejection, Row, open_csv, read_json_lines, read_records


def test_a_table_has_the_same_rows_in_every_format() -> None:
    rows = [{"id": "a", "text": "two\nlines"}, {"id": "b", "text": "é"}]
    contents = {
        "t.csv": 'id,text\n\na,"two\nlines"\r\nb,é',
        "t.TSV": 'id\ttext\na\t"two\nlines"\nb\té\n',
        "t.jsonl": '{"id": "a", "text": "two\\nlines"}\n\n{"id": "b", "text": "é"}',
    }
    for name, content in contents.items():
        for mark in (b"", b"\xef\xbb\xbf"):
            assert read_records(io.BytesIO(mark + content.encode()), name) == (["id", "text"], rows)


def test_an_invalid_row_rejects_a_whole_table_but_a_stream_of_rows_continues() -> None:
    csv, lines = b"id,text\na,b\nb,c,d\nc,\xe9\nd,e\n", b'{"id": 1}\n7\n{"id": 3, "id": 4}\n{"id": 5}'
    for read, content, good in ((open_csv, csv, [2, 5]), (read_json_lines, lines, [1, 4])):
        rows = list(getattr(result := read(io.BytesIO(content), "t.csv"), "rows", result))
        assert [row.line for row in rows if isinstance(row, Row)] == good
        assert [row.kind for row in rows if isinstance(row, Rejection)] in (
            ["wrong_columns", "not_utf8"],
            ["unreadable_json", "unreadable_json"],
        )
    with pytest.raises(SourceError, match=r"^t\.csv, row 1 \(line 3\): expected 2 fields, found 3; correct its commas"):
        read_records(io.BytesIO(csv), "t.csv")
    with pytest.raises(SourceError, match=r"^t\.jsonl, row 1 \(line 2\): expected a JSON object, found int"):
        read_records(io.BytesIO(lines), "t.jsonl")


@pytest.mark.parametrize(
    "content, complaint",
    [
        (b"", "the file is empty; it may be truncated"),
        (b"\n", "line 1: expected a header with column names"),
        (b"id;text\n", "line 1: fields are separated by semicolons, expected commas; save it with commas"),
        (b"id\ttext\n", "line 1: fields are separated by tabs, expected commas; save it .* with tabs as .tsv"),
        (b'"id,text\n', "line 1: no readable header"),
        (b"id,t\xe9xt\n", "line 1: no readable header .not UTF-8 after 'idt'"),
        (b"id,text\ra,b\r", "line 1: no readable header .*with the usual line endings"),
        ("id,text\n".encode("utf-16"), "the file is UTF-16; save it as UTF-8"),
        (b"id,text,id\n", "2 columns are called 'id'; rename"),
        (
            b"id,text\n" + b'a,"' + b"x\n" * 200 + b'"\n',
            r"row 0 \(line 2\): not CSV \(a quote is not closed, so the lines",
        ),
    ],
)
def test_a_file_that_is_not_a_table_is_refused_with_the_remedy(content: bytes, complaint: str) -> None:
    with pytest.raises(SourceError, match=rf"^t\.csv(:|,) {complaint}"):
        read_records(io.BytesIO(content), "t.csv")


def test_a_column_that_is_not_read_may_be_repeated() -> None:
    assert read_records(io.BytesIO(b"id,x,x\na,b,c\n"), "t.csv", ["id"]).rows[0]["id"] == "a"
