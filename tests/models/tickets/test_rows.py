"""Ticket files as programs write them: spreadsheets, encodings, JSON, CSV dialects. All tickets made up."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path
from xml.sax.saxutils import escape

import pytest

from models.tickets.columns import team_name, ticket_id
from models.tickets.encodings import likeliest
from models.tickets.faults import DataError, Faults
from models.tickets.rows import read_rows

ROOT = Path(__file__).resolve().parents[3]
HEADER = ["ticket_id", "text", "team"]
ROWS = [
    [f"{n}", f"the lamp number {n} is dark, please help", ("Light", "Repair, Ltd.", "007 🚒")[n % 3]]
    for n in range(60)
]


def rows_of(path: Path, columns=("text", "team"), optional=("ticket_id",), **how) -> tuple[list, Faults]:
    faults = Faults()
    return list(read_rows(path, list(columns), list(optional), faults, **how)), faults


def kinds(faults: Faults) -> set[str]:
    return {fault.kind for fault in faults}


def write(path: Path, text: str, encoding: str = "utf-8") -> Path:
    path.write_bytes(text.encode(encoding))
    return path


def csv_text(rows: list[list[str]] = ROWS, delimiter: str = ",", end: str = "\r\n") -> str:
    quoted = [[f'"{cell}"' if "," in cell or delimiter in cell else cell for cell in row] for row in rows]
    return end.join(delimiter.join(row) for row in [HEADER, *quoted]) + end


def expected(rows: list[list[str]] = ROWS) -> list[dict[str, str]]:
    return [{"text": text, "team": team, "ticket_id": given} for given, text, team in rows]


# --------------------------------------------------------------------------------------- spreadsheets


def xlsx(path: Path, sheets: dict[str, list[list[str | int]]]) -> Path:
    """A workbook of Excel's, with nothing in it that is not needed."""
    main = 'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"'
    office = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    with zipfile.ZipFile(path, "w") as book:
        book.writestr("[Content_Types].xml", "<Types/>")
        first = f'<Relationship Id="r" Type="{office}/officeDocument" Target="xl/workbook.xml"/>'
        book.writestr("_rels/.rels", f"<Relationships>{first}</Relationships>")
        names = "".join(f'<sheet name="{name}" sheetId="{n}" r:id="r{n}"/>' for n, name in enumerate(sheets))
        book.writestr(
            "xl/workbook.xml", f'<workbook {main} xmlns:r="{office}"><sheets>{names}</sheets></workbook>'
        )
        parts = "".join(
            f'<Relationship Id="r{n}" Type="{office}/worksheet" Target="worksheets/s{n}.xml"/>'
            for n in range(len(sheets))
        )
        book.writestr("xl/_rels/workbook.xml.rels", f"<Relationships>{parts}</Relationships>")
        for n, rows in enumerate(sheets.values()):
            lines = "".join(
                f'<row r="{at}">{"".join(map(cell, row))}</row>' for at, row in enumerate(rows, 1)
            )
            book.writestr(
                f"xl/worksheets/s{n}.xml", f"<worksheet {main}><sheetData>{lines}</sheetData></worksheet>"
            )
    return path


def cell(value: str | int) -> str:
    if isinstance(value, int):
        return f"<c><v>{value}</v></c>"
    return f'<c t="inlineStr"><is><t xml:space="preserve">{escape(value)}</t></is></c>'


def ods(path: Path, rows: list[list[str]]) -> Path:
    """A sheet of LibreOffice's."""
    spaces = "".join(
        f' xmlns:{name}="urn:oasis:names:tc:opendocument:xmlns:{name}:1.0"'
        for name in ("office", "table", "text")
    )
    cells = "".join(
        "<table:table-row>"
        + "".join(
            f'<table:table-cell office:value-type="string"><text:p>{escape(one)}</text:p></table:table-cell>'
            for one in row
        )
        + "</table:table-row>"
        for row in rows
    )
    with zipfile.ZipFile(path, "w") as book:
        book.writestr("mimetype", "application/vnd.oasis.opendocument.spreadsheet")
        book.writestr("META-INF/manifest.xml", "<manifest/>")
        body = f'<office:body><office:spreadsheet><table:table table:name="a">{cells}</table:table>'
        closing = "</office:spreadsheet></office:body></office:document-content>"
        book.writestr("content.xml", f"<office:document-content{spaces}>{body}{closing}")
    return path


@pytest.mark.parametrize("name", ["t.xlsx", "t.csv", "T.XLS"])
def test_a_workbook_is_read_whatever_its_name_ends_with(tmp_path: Path, name: str) -> None:
    rows, faults = rows_of(xlsx(tmp_path / name, {"tickets": [HEADER, *ROWS]}))
    assert [values for _, values in rows] == expected()
    assert [number for number, _ in rows] == list(range(2, 62))
    assert not list(faults)


def test_numbers_of_a_workbook_are_what_a_person_sees(tmp_path: Path) -> None:
    rows, _ = rows_of(xlsx(tmp_path / "t.xlsx", {"a": [HEADER, [1234, "one", "007"], [5, "two", 12]]}))
    assert [(values["ticket_id"], values["team"]) for _, values in rows] == [("1234", "007"), ("5", "12")]


def test_the_sheet_that_has_the_columns_is_read_and_told(tmp_path: Path) -> None:
    path = xlsx(tmp_path / "t.xlsx", {"notes": [["made by hand"]], "tickets": [HEADER, *ROWS]})
    rows, faults = rows_of(path)
    assert len(rows) == 60
    assert "'tickets'" in str(next(iter(faults)))


def test_a_sheet_below_a_title_is_told_and_read_when_told(tmp_path: Path) -> None:
    path = xlsx(tmp_path / "t.xlsx", {"a": [["All tickets"], ["of November"], HEADER, *ROWS]})
    _, faults = rows_of(path)
    assert "row 3, below a title: add --skip-rows 2" in "".join(map(str, faults))
    rows, _ = rows_of(path, skip_rows=2)
    assert rows[0] == (4, expected()[0])


def test_a_sheet_of_open_document_is_read(tmp_path: Path) -> None:
    for name in ("t.ods", "t.csv"):
        rows, faults = rows_of(ods(tmp_path / name, [HEADER, *ROWS]))
        assert [values for _, values in rows] == expected()
        assert not list(faults)


def test_an_invalid_workbook_is_reported(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"not a spreadsheet.*name it \.csv"):
        rows_of(write(tmp_path / "t.xlsx", csv_text()))
    with zipfile.ZipFile(tmp_path / "u.xlsx", "w") as archive:
        archive.writestr("xl/workbook.xml", "<broken")
    with pytest.raises(DataError, match="damaged"):
        rows_of(tmp_path / "u.xlsx")


# ------------------------------------------------------------------------------------------ encodings

SENTENCES = {
    "cp1252": "Der Drucker im dritten Stock druckt nicht, bitte prüfen Sie das Gerät. Störung seit März",
    "cp1250": "Drukarka nie działa od wczoraj, proszę o pomoc. Hasło wygasło i nie mogę się zalogować",
    "cp1251": "Принтер не печатает со вчерашнего дня. Пароль истёк, не могу войти",
    "cp1254": "Yazıcı çalışmıyor, nasıl yardım eder misiniz. Şifrem geçersiz oldu",
    "cp932": "プリンターが動きません。確認をお願いします。パスワードの期限が切れました",
    "gb18030": "打印机坏了,请帮忙修理。密码过期,无法登录。网络连接不上",
    "mac_roman": "Der Drucker im dritten Stock druckt nicht, bitte prüfen Sie für uns das Gerät",
}


@pytest.mark.parametrize("encoding", SENTENCES)
def test_an_encoding_is_found_and_told(tmp_path: Path, encoding: str) -> None:
    text = SENTENCES[encoding]
    rows, faults = rows_of(
        write(tmp_path / "t.csv", csv_text([["1", text, "a"], ["2", text, "b"]]), encoding)
    )
    assert [values["text"] for _, values in rows] == [text, text]
    assert kinds(faults) == {"encoding"}


@pytest.mark.parametrize(
    "text", ["un café à emporter", "où est ma facture réglée", "El envío no llegó", "Größe M"]
)
def test_few_letters_of_western_europe_are_enough(text: str) -> None:
    encoded = text.encode("cp1252")
    assert encoded.decode(likeliest(encoded) or "") == text


# ----------------------------------------------------------------------------------------------- JSON

NESTED = {
    "key": "IT-1",
    "fields": {
        "summary": "no light",
        "labels": ["a", "b"],
        "components": [{"name": "Light", "parts": {"n": 4}}],
    },
    "flat.name": "dotted itself",
}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("fields.summary", "no light"),
        ("fields.components.name", "Light"),
        ("fields.components.0.name", "Light"),
        ("fields.components.parts.n", "4"),
        ("fields.labels", "a\nb"),
        ("fields.labels.1", "b"),
        ("flat.name", "dotted itself"),
    ],
)
def test_fields_inside_of_objects_have_dotted_names(tmp_path: Path, name: str, value: str) -> None:
    rows, faults = rows_of(write(tmp_path / "t.jsonl", json.dumps(NESTED) + "\n"), columns=["key", name])
    assert [(number, values[name]) for number, values in rows] == [(1, value)]
    assert not faults.fatal


def test_a_column_that_is_not_there_is_told_with_the_dotted_names(tmp_path: Path) -> None:
    _, faults = rows_of(write(tmp_path / "t.jsonl", json.dumps(NESTED) + "\n"), columns=["summary"])
    assert "fields.summary" in str(next(iter(faults)))
    assert "fields.components.name" in str(next(iter(faults)))


def test_an_object_where_text_should_be_says_how_its_fields_are_named(tmp_path: Path) -> None:
    rows, faults = rows_of(write(tmp_path / "t.jsonl", json.dumps(NESTED) + "\n"), columns=["fields"])
    assert not rows
    assert "fields.summary" in str(next(iter(faults)))


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("name", ["t.json", "t.jsonl"])
def test_one_array_is_read_as_lines_are(tmp_path: Path, name: str, indent: int | None) -> None:
    records = [dict(zip(HEADER, row, strict=True)) for row in ROWS]
    rows, faults = rows_of(write(tmp_path / name, json.dumps(records, indent=indent)))
    assert [values for _, values in rows] == expected()
    assert not list(faults)


def test_an_array_inside_of_one_object_is_read_and_told(tmp_path: Path) -> None:
    records = [dict(zip(HEADER, row, strict=True)) for row in ROWS]
    rows, faults = rows_of(write(tmp_path / "t.json", json.dumps({"total": 60, "issues": records}, indent=1)))
    assert len(rows) == 60
    assert "'issues'" in str(next(iter(faults)))


# ------------------------------------------------------------------------------------------------ CSV


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_line_ends_and_delimiters(tmp_path: Path, end: str, delimiter: str) -> None:
    rows, faults = rows_of(write(tmp_path / "t.csv", csv_text(delimiter=delimiter, end=end)))
    assert [values for _, values in rows] == expected()
    assert kinds(faults) == (set() if delimiter == "," else {"delimiter"})


@pytest.mark.parametrize("line", ["sep=;", '"sep=;"', "SEP=;"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_the_separator_line_of_excel_is_no_row(tmp_path: Path, line: str, mark: str) -> None:
    rows, faults = rows_of(write(tmp_path / "t.csv", f"{mark}{line}\r\n" + csv_text(delimiter=";")))
    assert rows[0] == (2, expected()[0])
    assert "separator_line" in kinds(faults)


def test_a_mark_that_was_read_as_latin_1_is_no_part_of_a_name(tmp_path: Path) -> None:
    rows, faults = rows_of(write(tmp_path / "t.csv", "ï»¿" + csv_text()))
    assert [values for _, values in rows] == expected()
    assert kinds(faults) == {"misread_mark"}


def test_a_title_above_the_header_is_told_and_read_when_told(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", 'All tickets,,\r\n\r\n"Exported by ""me"", today",,\r\n' + csv_text())
    _, faults = rows_of(path)
    assert "the header seems to be row 4, below a title: add --skip-rows 3" in "".join(map(str, faults))
    rows, faults = rows_of(path, skip_rows=3)
    assert rows[0] == (5, expected()[0])
    assert not list(faults)


def test_skipping_rows_is_for_tables(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="tables with a header"):
        rows_of(write(tmp_path / "t.jsonl", "{}"), skip_rows=1)


def test_quotes_with_a_backslash_are_read_where_all_rows_then_have_their_fields(tmp_path: Path) -> None:
    lines = [f'"{n}","the \\"big\\" lamp, number {n}","Light"' for n in range(30)]
    text = '"ticket_id","text","team"\n' + "\n".join(lines)
    rows, faults = rows_of(write(tmp_path / "t.csv", text))
    assert [values["text"] for _, values in rows] == [f'the "big" lamp, number {n}' for n in range(30)]
    assert kinds(faults) == {"backslash_quotes"}


def test_a_backslash_before_a_closing_quote_is_a_backslash(tmp_path: Path) -> None:
    lines = [f'"{n}","look in C:\\temp\\","Light"' for n in range(30)]
    rows, faults = rows_of(write(tmp_path / "t.csv", '"ticket_id","text","team"\n' + "\n".join(lines)))
    assert {values["text"] for _, values in rows} == {"look in C:\\temp\\"}
    assert not list(faults)


def test_quotes_of_two_kinds_are_told_with_the_program_that_writes_so(tmp_path: Path) -> None:
    lines = [f'"{n}","a ""big"" lamp, or two","Light"' for n in range(30)] + ['"a","the \\"big\\" one","b"']
    rows, faults = rows_of(write(tmp_path / "t.csv", '"ticket_id","text","team"\n' + "\n".join(lines)))
    assert [values["text"] for _, values in rows] == ['a "big" lamp, or two'] * 30
    assert "MySQL" in "".join(map(str, faults))


def test_line_breaks_without_quotes_are_read_where_rows_begin_with_ids(tmp_path: Path) -> None:
    lines = [f"INC-{n},the lamp is dark\n\nand cold\nsince today,Light" for n in range(30)]
    lines += [f"INC-{n},one line,Light" for n in range(30, 60)]
    rows, faults = rows_of(write(tmp_path / "t.csv", "ticket_id,text,team\n" + "\n".join(lines)))
    assert len(rows) == 60
    assert rows[0][1]["text"] == "the lamp is dark\nand cold\nsince today"
    assert [len(fault.rows) for fault in faults if fault.kind == "rejoined_row"] == [30]


def test_short_rows_are_not_joined_where_the_next_one_begins_a_row(tmp_path: Path) -> None:
    lines = [f"INC-{n},one line,Light" for n in range(30)] + ["INC-70,only two", "INC-71,only two"]
    lines += ["INC-72,a line", "and more, of them, with commas", "INC-73,the last,Light"]
    rows, faults = rows_of(write(tmp_path / "t.csv", "ticket_id,text,team\n" + "\n".join(lines)))
    assert len(rows) == 31
    (ragged,) = faults
    assert (ragged.kind, ragged.rows) == ("ragged_row", [32, 33, 34])
    assert "quotes" in str(ragged)


def test_line_breaks_without_quotes_and_without_ids_are_told(tmp_path: Path) -> None:
    lines = [
        f"{word} is dark\nand cold,Light" for word in ("lamp", "My own lamp", "It", "So: that", "l'air") * 9
    ]
    rows, faults = rows_of(write(tmp_path / "t.csv", "text,team\n" + "\n".join(lines)), optional=())
    assert "a line break or ',' in a field without quotes" in "".join(map(str, faults))
    assert all(values["text"].startswith("and cold") for _, values in rows)


# ------------------------------------------------------------------------------------- values of a row


@pytest.mark.parametrize(
    "nothing", ["", " ", "NULL", "nan", "NaN", "N/A", "None", "-", "(empty)", "\u200b", "\\N", "#N/A", "—"]
)
def test_what_says_that_there_is_no_team(nothing: str) -> None:
    assert team_name(nothing) == ""


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("Payroll\u200b", "Payroll"),
        ("\ufeffPay\u00adroll\u00a0", "Payroll"),
        ("Ru\u0308ckgabe", "Rückgabe"),
        ("First\u00a0 Level", "First Level"),
        ("007", "007"),
        ("Nan's Kitchen", "Nan's Kitchen"),
        ("A, B & C", "A, B & C"),
        ("👩\u200d🚒 Fire", "👩\u200d🚒 Fire"),
    ],
)
def test_a_team_is_its_name_as_it_is_seen(given: str, name: str) -> None:
    assert team_name(given) == name


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("1234.0", "1234"),
        (" 1234 ", "1234"),
        ("0012", "0012"),
        ("1.5", "1.5"),
        ("v1.0", "v1.0"),
        ("2026-11-01",) * 2,
    ],
)
def test_ids(given: str, expected: str) -> None:
    assert ticket_id({"id": given}) == expected
    assert ticket_id({"ticket_id": "", "id": given}) == expected
    assert ticket_id({"key": given, "id": "other"}, "key") == expected


def test_reading_needs_neither_pandas_nor_pyarrow(tmp_path: Path) -> None:
    path = xlsx(tmp_path / "t.xlsx", {"a": [HEADER, *ROWS]})
    (tmp_path / "t.parquet").write_bytes(b"PAR1")
    program = (
        "import sys; from pathlib import Path\n"
        "sys.modules.update(dict.fromkeys(['torch', 'pandas', 'pyarrow', 'sklearn', 'scipy']))\n"
        "from models.tickets.rows import read_rows; from models.tickets.faults import DataError, Faults\n"
        f"print(len(list(read_rows(Path({str(path)!r}), ['text'], [], Faults()))))\n"
        f"list(read_rows(Path({str(tmp_path / 't.parquet')!r}), ['text'], [], Faults()))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "60\n"
    assert "DataError" in done.stderr
    assert "pip install pyarrow" in done.stderr
