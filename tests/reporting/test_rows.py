from __future__ import annotations

import subprocess
import sys
from dataclasses import FrozenInstanceError, fields

import pytest

from bpcbench.records import Unit
from bpcbench.reporting import Row, to_frame
from bpcbench.reporting.rows import notes, number, with_unit


def row(dataset: str = "digits", method: str = "random", noted: tuple[str, ...] = ()) -> Row:
    return Row(dataset, 1, method, "vi", "conv", "c0", 0, 0, "predictive", "acc", 0.5, True, "percent", noted)


def test_a_row_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        row().value = 1.0  # type: ignore[misc]


def test_frame_has_a_column_per_field_and_a_line_per_row() -> None:
    frame = to_frame([row(noted=("subset", "generated")), row("mnist")])
    assert list(frame.columns) == [field.name for field in fields(Row)]
    assert frame["dataset"].tolist() == ["digits", "mnist"]
    assert frame["notes"].tolist() == ["subset; generated", ""]
    assert frame["value"].dtype == float


def test_frame_of_nothing_still_has_its_columns() -> None:
    assert list(to_frame([]).columns) == [field.name for field in fields(Row)]


def test_importing_the_report_does_not_import_pandas() -> None:
    code = "import sys, bpcbench.reporting; sys.exit('pandas' in sys.modules or 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("unit", "value", "text"),
    [
        ("percent", 0.934, "93.4"),
        ("percent", 1.0, "100.0"),
        ("percent", -0.5, "-50.0"),
        ("", 0.349, "0.35"),
        ("", 0.0312, "0.031"),
        ("", 0.0, "0.00"),
        ("", 2e-5, "2.0e-05"),
        ("", -1.25, "-1.25"),
        ("", 123.456, "123.5"),
        ("", 4321.9, "4322"),
        ("", 1e30, "1.0e+30"),
        ("", float("inf"), "inf"),
        ("", float("nan"), "nan"),
        ("percent", float("nan"), "nan"),
    ],
)
def test_number(unit: Unit, value: float, text: str) -> None:
    assert number(unit, value) == text


def test_a_spread_has_the_decimals_of_its_mean() -> None:
    assert number("", 0.02, like=0.35) == "0.02"
    assert number("", 0.02, like=0.05) == "0.020"


def test_a_heading_has_the_sign_of_its_unit() -> None:
    assert (with_unit("acc", "percent"), with_unit("acc", "")) == ("acc %", "acc")


def test_notes_name_the_data_sets_that_carry_them() -> None:
    rows = [row("mnist", noted=("subset",)), row("digits"), row("cifar10", noted=("generated", "subset"))]
    assert list(notes(rows)) == ["Marked subset: mnist, cifar10.", "Marked generated: cifar10."]


def test_a_note_of_some_rows_only_names_their_methods() -> None:
    rows = [row("mnist", "fbpc", ("reconstruction",)), row("mnist", "vbpc")]
    assert list(notes(rows)) == ["Marked reconstruction: mnist (fbpc)."]


def test_a_note_of_several_words_speaks_for_itself() -> None:
    rows = [row("mnist", noted=("2,000 of 10,000 test images", "svhn: generated")), row("digits")]
    assert list(notes(rows)) == ["2,000 of 10,000 test images (mnist).", "svhn: generated (mnist)."]
