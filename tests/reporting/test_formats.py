# ruff: noqa: E501 - golden outputs are kept as they are
from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bpcbench.errors import UserError
from bpcbench.records import Unit
from bpcbench.reporting import FORMATS, Asked, Cell, Column, Format, Group, Line, Place, Row, Table, build, render
from bpcbench.stats import summarise
from bpcbench.store.manifest import PublishedRecord

TEXT = """\
Small & made up

                        ─────── mnist ipc 1 ────────
method                     acc % ↑           nll ↓
────────────────────────────────────────────────────
my_method               91.0±1.4   *    0.36±0.01  _
my_method (published)   96.7±0.4           —
near                    90.5±2.1   _~  0.060±0.014 *
herding                 50.0 (n=1)       inf (n=1)
whole                   98.5±0.7           —
────────────────────────────────────────────────────
In each column: * best, _ second, ~ not distinguishable from the best (paired
  t-test at the 0.05 level, Welch's t-test where seeds cannot be paired).
± is the sample standard deviation over n coresets of their means over
  evaluation seeds; n = 2 unless given in brackets.
With n = 2 only very large differences can be told apart.
No result (—): 1 of 8 cells.
Not finite, and so not ranked: 1 of 8 cells.
Shown for reference, not ranked: whole.
Marked subset: mnist.
Lines marked (published) are printed in A & B, 2025 and not ranked here. Its ±
  need not mean the same.
No published number for near, herding, whole.
"""

MARKDOWN = """\
**Small &amp; made up**

| method | mnist ipc 1<br>acc % ↑ | mnist ipc 1<br>nll ↓ |
| --- | ---: | ---: |
| my_method | **91.0**±1.4 | <ins>0.36</ins>±0.01 |
| my_method (published) | 96.7±0.4 | — |
| near | <ins>90.5</ins>±2.1 \\~ | **0.060**±0.014 |
| herding | 50.0 (n=1) | inf (n=1) |
| whole | 98.5±0.7 | — |

- In each column: **bold** best, <ins>underlined</ins> second, \\~ not distinguishable from the best (paired t-test at the 0.05 level, Welch's t-test where seeds cannot be paired).
- ± is the sample standard deviation over n coresets of their means over evaluation seeds; n = 2 unless given in brackets.
- With n = 2 only very large differences can be told apart.
- No result (—): 1 of 8 cells.
- Not finite, and so not ranked: 1 of 8 cells.
- Shown for reference, not ranked: whole.
- Marked subset: mnist.
- Lines marked (published) are printed in A &amp; B, 2025 and not ranked here. Its ± need not mean the same.
- No published number for near, herding, whole.
"""

LATEX = r"""% needs \usepackage{booktabs}
\begin{table}
\centering
\caption{Small \& made up}
\begin{tabular}{lcc}
\toprule
 & \multicolumn{2}{c}{mnist ipc 1} \\
\cmidrule(lr){2-3}
method & acc \% $\uparrow$ & nll $\downarrow$ \\
\midrule
my\_method & \textbf{91.0}$\pm$1.4 & \underline{0.36}$\pm$0.01 \\
my\_method (published) & 96.7$\pm$0.4 & --- \\
near & \underline{90.5}$\pm$2.1$^{\sim}$ & \textbf{0.060}$\pm$0.014 \\
herding & 50.0 (n=1) & inf (n=1) \\
whole & 98.5$\pm$0.7 & --- \\
\bottomrule
\end{tabular}
\par\smallskip
\parbox{\linewidth}{\footnotesize In each column: \textbf{bold} best, \underline{underlined} second, $^{\sim}$ not distinguishable from the best (paired t-test at the 0.05 level, Welch's t-test where seeds cannot be paired). $\pm$ is the sample standard deviation over n coresets of their means over evaluation seeds; n = 2 unless given in brackets. With n = 2 only very large differences can be told apart. No result (---): 1 of 8 cells. Not finite, and so not ranked: 1 of 8 cells. Shown for reference, not ranked: whole. Marked subset: mnist. Lines marked (published) are printed in A \& B, 2025 and not ranked here. Its $\pm$ need not mean the same. No published number for near, herding, whole.}
\end{table}
"""

CSV = """\
dataset,ipc,method,inference,network,evaluator,metric,higher_is_better,unit,source,mean,std,n,within,low,high,best,second,tied,nonzero,asked,seeds,text,notes
mnist,1,my_method,vi,conv,predictive,acc,True,percent,measured,0.91,0.014142,2,,0.782938,1.037062,True,False,False,False,,0,91.0±1.4,subset
mnist,1,my_method,vi,conv,predictive,nll,False,,measured,0.36,0.014142,2,,0.232938,0.487062,False,True,False,False,,0,0.36±0.01,subset
mnist,1,my_method,vi,conv,,acc,True,percent,published,0.967,0.004,,,,,False,False,False,False,,,96.7±0.4,
mnist,1,my_method,vi,conv,,nll,False,,published,,,,,,,False,False,False,False,,,—,
mnist,1,near,vi,conv,predictive,acc,True,percent,measured,0.905,0.021213,2,,0.714407,1.095593,False,True,True,False,,0,90.5±2.1,subset
mnist,1,near,vi,conv,predictive,nll,False,,measured,0.060000,0.014142,2,,-0.067062,0.187062,True,False,False,False,,0,0.060±0.014,subset
mnist,1,herding,vi,conv,predictive,acc,True,percent,measured,0.5,,1,,,,False,False,False,False,,0,50.0 (n=1),subset
mnist,1,herding,vi,conv,predictive,nll,False,,measured,inf,,1,,,,False,False,False,False,,0,inf (n=1),subset
mnist,1,whole,vi,conv,predictive,acc,True,percent,measured,0.985,0.007071,2,,0.921469,1.048531,False,False,False,False,,0,98.5±0.7,subset
mnist,1,whole,vi,conv,predictive,nll,False,,measured,,,,,,,False,False,False,False,,,—,
"""


JSON = """\
{
  "title": "",
  "cells": [
    {
      "dataset": "digits",
      "ipc": 1,
      "method": "a",
      "inference": "vi",
      "network": "conv",
      "evaluator": "e",
      "metric": "nll",
      "higher_is_better": false,
      "unit": "",
      "source": "measured",
      "mean": null,
      "std": null,
      "n": 1,
      "within": null,
      "low": null,
      "high": null,
      "best": false,
      "second": false,
      "tied": false,
      "nonzero": false,
      "asked": null,
      "seeds": [
        0
      ],
      "text": "inf",
      "notes": ""
    }
  ],
  "footnotes": [
    "n = 1 coreset per cell: no ± can be given, and no difference can be told from noise.",
    "Not finite, and so not ranked: 1 of 1 cells."
  ]
}
"""


def example(name: str = "my_method") -> Table:
    accs = {name: (0.90, 0.92), "near": (0.89, 0.92), "herding": (0.5, 0.5), "whole": (0.99, 0.98)}
    nlls = {name: (0.35, 0.37), "near": (0.05, 0.07), "herding": (float("inf"),) * 2}
    rows = []
    units: dict[str, Unit] = {"acc": "percent", "nll": ""}
    for metric, higher, values in (("acc", True, accs), ("nll", False, nlls)):
        for method, pair in values.items():
            for seed, value in enumerate(pair):
                coreset = method if method == "herding" else f"{method}-{seed}"
                what = (metric, value, higher, units[metric], ("subset",), method != "whole")
                rows.append(Row("mnist", 1, method, "vi", "conv", coreset, seed, 0, "predictive", *what))
    record = PublishedRecord("A & B, 2025", "acc", 0.967, 0.004, ("96.7", "0.4"))
    notes = {record.publication: "Its ± need not mean the same."}
    place = Place("mnist", 1, name, "vi", "conv")
    return build(rows, title="Small & made up", published={place: [record]}, publications=notes)


def single(value: float, method: str = "a", dataset: str = "digits", metric: str = "nll") -> Row:
    return Row(dataset, 1, method, "vi", "conv", f"{method}{dataset}", 0, 0, "e", metric, value, False)


@pytest.mark.parametrize(("form", "golden"), [("text", TEXT), ("md", MARKDOWN), ("latex", LATEX), ("csv", CSV)])
def test_golden(form: Format, golden: str) -> None:
    # The last digits of intervals are those of the platform's special functions.
    assert re.sub(r"\d+\.\d{7,}", lambda found: f"{float(found[0]):.6f}", render(example(), form)) == golden


def test_golden_json() -> None:
    assert render(build([single(float("inf"))], ["nll"]), "json") == JSON


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(UserError, match=r"unknown format 'mdd'; did you mean 'md'\?"):
        render(example(), "mdd")  # type: ignore[arg-type]


@pytest.mark.parametrize("form", FORMATS)
def test_an_empty_table_is_rendered(form: Format) -> None:
    assert render(build([]), form).endswith("\n")


def test_color_replaces_the_plain_marks_and_keeps_the_alignment() -> None:
    colored = render(example(), color=True)
    assert "\033[1m91.0\033[0m±1.4" in colored
    assert "\033[4m90.5\033[0m±2.1   ~" in colored
    assert "bold best, underlined second" in colored
    lines = re.sub(r"\033\[\dm", "", colored).splitlines()
    assert len({line.index("±") for line in lines[5:10] if line.startswith(("my", "near", "whole"))}) == 1


def test_a_text_table_breaks_into_panels_that_fit() -> None:
    rows = [single(0.5, method, dataset) for method in ("a", "b") for dataset in ("x", "y", "z")]
    wide, narrow = (render(build(rows, ["nll"]), width=width).splitlines() for width in (None, 30))
    assert [line.split() for line in wide if line.startswith("a ")] == [["a", "0.50", "*", "0.50", "*", "0.50", "*"]]
    assert [line.split() for line in narrow if line.startswith("a ")] == [["a", "0.50", "*"]] * 3
    assert max(len(line) for line in narrow if "─" in line) <= 30


def test_every_line_of_a_text_table_starts_its_columns_at_the_same_place() -> None:
    lines = render(build([single(0.5, "a"), single(123.4, "a long name"), single(0.01, "b")], ["nll"])).splitlines()
    ends = {re.search(r"\d( [*_])?$", line).start() for line in lines[3:6]}  # type: ignore[union-attr]
    assert len(ends) == 1


def test_latex_is_well_formed_and_names_are_escaped() -> None:
    text = render(example(r"a_b & 50% #1 {$x^2~|<>\\} [y]*"), "latex")
    assert r"a\_b \& 50\% \#1 \{\$x\textasciicircum{}2\textasciitilde{}\textbar{}" in text
    assert r"\textless{}\textgreater{}\textbackslash{}\textbackslash{}\} {[}y]{*}" in text
    assert_well_formed(text)


def test_a_percent_sign_of_the_legend_does_not_end_the_line_in_latex() -> None:
    cell = Cell(summarise({0: [0.5], 1: [0.6]}), "0.55", interval="[0.1, 0.9]", nonzero=True)
    table = Table("t", ("method",), (Group("d", 1, (Column("nll"),)),), (Line("a", "i", "n", (cell,)),), baseline="b")
    text = render(table, "latex")
    assert r"95 \% interval" in text
    assert_well_formed(text)


@given(st.text(max_size=20))
def test_latex_is_well_formed_for_any_name(name: str) -> None:
    assert_well_formed(render(build([single(0.5, name), single(0.4, "b", name)]), "latex"))


def assert_well_formed(text: str) -> None:
    """Braces and environments are balanced, math is closed, and every line has as many cells as there are columns."""
    bare = re.sub(r"\\[{}$&#_%]", "", text)
    assert "%" not in bare.partition("\n")[2]
    assert bare.count("{") == bare.count("}")
    assert bare.count("$") % 2 == 0
    assert re.findall(r"\\begin{(\w+)}", bare) == re.findall(r"\\end{(\w+)}", bare)[::-1]
    found = re.search(r"\\begin{tabular}{(\w+)}", bare)
    assert found
    body = bare[found.end() : bare.index(r"\end{tabular}")]
    for line in body.splitlines():
        if line.endswith(r" \\"):
            spans = [int(span) for span in re.findall(r"\\multicolumn{(\d+)}", line)]
            assert line.count("&") + 1 + sum(spans) - len(spans) == len(found[1]), line
        else:
            assert re.fullmatch(r"|\\(top|mid|bottom)rule|(\\cmidrule\(lr\){\d+-\d+})+", line), line


def test_markdown_names_are_escaped() -> None:
    text = render(build([single(0.5, "a|b *c* _d_ e_f <u>`x`\n~"), single(0.4, "g", "x|y")], ["nll"]), "md")
    assert r"| a\|b \*c\* \_d\_ e_f &lt;u&gt;\`x\` \~ | " in text
    assert r"x\|y ipc 1<br>nll ↓ |" in text
    table = [re.sub(r"\\\|", "", line) for line in text.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in table} == {4}


def test_csv_holds_what_is_not_finite_and_quotes_names() -> None:
    text = render(build([single(float("nan"), 'a,"b"'), single(float("-inf"), "c")], ["nll"]), "csv")
    first, second = csv.DictReader(io.StringIO(text))
    assert (first["method"], first["mean"], first["text"]) == ('a,"b"', "nan", "nan")
    assert (second["mean"], second["n"], second["best"]) == ("-inf", "1", "False")


def test_a_zero_is_a_number() -> None:
    cell = json.loads(render(build([single(0.0)], ["nll"]), "json"))["cells"][0]
    assert (cell["mean"], cell["text"]) == (0.0, "0.00")


@given(st.lists(st.floats(), min_size=1, max_size=5))
def test_json_gives_back_the_means(values: list[float]) -> None:
    table = build([single(value, str(index)) for index, value in enumerate(values)], ["nll"])
    document = json.loads(render(table, "json"), parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    means = [cell["mean"] for cell in document["cells"]]
    assert means == [value if abs(value) < float("inf") else None for value in values]
    assert document["footnotes"] == list(table.footnotes)


PAPER = """\
                ───── a ─────   ───── b ─────
data set  ipc   acc %  nll ↓    acc %  nll ↓
─────────────────────────────────────────────
mnist     1      50.0  0.50 *    40.0  0.70 _
mnist     10        —  0.30 *       —  0.40 _
digits    1            0.20 _          0.10 *
─────────────────────────────────────────────
For each metric of a row: * best, _ second.
n = 1 coreset per cell: no ± can be given, and no difference can be told from
  noise.
No result (—): 2 of 10 cells.
"""


def papers() -> Table:
    """Digits have no accuracy; that of ten images per class is not there yet."""
    values = {("mnist", 1): (0.5, 0.7), ("mnist", 10): (0.3, 0.4), ("digits", 1): (0.2, 0.1)}
    rows = [
        Row(dataset, ipc, method, "vi", "conv", f"{method}{dataset}{ipc}", 0, 0, "e", "nll", value, False)
        for (dataset, ipc), pair in values.items()
        for method, value in zip("ab", pair, strict=True)
    ]
    for method, value in (("a", 0.5), ("b", 0.4)):
        rows.append(Row("mnist", 1, method, "vi", "conv", f"{method}mnist1", 0, 0, "c", "acc", value, None, "percent"))
    rows.append(replace(rows[4], evaluator="c", metric="other"))
    return build(rows, ["acc", "nll"])


def test_the_layout_of_papers_as_text() -> None:
    assert render(papers(), layout="paper") == PAPER


def test_the_layout_of_papers_in_markdown() -> None:
    lines = render(papers(), "md", layout="paper").splitlines()
    assert lines[0] == "| data set | ipc | a<br>acc % | a<br>nll ↓ | b<br>acc % | b<br>nll ↓ |"
    assert lines[1] == "| --- | --- | ---: | ---: | ---: | ---: |"
    assert lines[2] == "| mnist | 1 | 50.0 | **0.50** | 40.0 | <ins>0.70</ins> |"
    assert lines[4] == "| digits | 1 |  | <ins>0.20</ins> |  | **0.10** |"


def test_the_layout_of_papers_in_latex() -> None:
    text = render(papers(), "latex", layout="paper")
    assert_well_formed(text)
    body = text[text.index(r"\toprule") : text.index(r"\bottomrule")].splitlines()
    assert body[1:4] == [
        r" &  & \multicolumn{2}{c}{a} & \multicolumn{2}{c}{b} \\",
        r"\cmidrule(lr){3-4}\cmidrule(lr){5-6}",
        r"data set & ipc & acc \% & nll $\downarrow$ & acc \% & nll $\downarrow$ \\",
    ]
    assert body[5:] == [
        r"mnist & 1 & 50.0 & \textbf{0.50} & 40.0 & \underline{0.70} \\",
        r" & 10 & --- & \textbf{0.30} & --- & \underline{0.40} \\",
        r"\midrule",
        r"digits & 1 &  & \underline{0.20} &  & \textbf{0.10} \\",
    ]


@given(st.text(max_size=20))
def test_the_layout_of_papers_is_well_formed_for_any_name(name: str) -> None:
    table = build([single(0.5, name), single(0.4, "b", name)])
    assert_well_formed(render(table, "latex", layout="paper"))


@pytest.mark.parametrize("form", ["csv", "json"])
def test_records_do_not_depend_on_the_layout(form: Format) -> None:
    assert render(example(), form, layout="paper") == render(example(), form)


def test_an_unknown_layout_is_refused() -> None:
    with pytest.raises(UserError, match=r"unknown layout 'papers'; did you mean 'paper'\?"):
        render(example(), layout="papers")  # type: ignore[arg-type]


def test_a_command_in_a_footnote_is_not_broken_at_hyphens() -> None:
    note = "To complete: bpcbench run " + "x" * 45 + " --no-mlflow --quiet"
    assert "--no-mlflow" in render(build([single(0.5)], ["nll"], extra=[note]))


def test_incomplete_cells_say_how_much_there_is() -> None:
    asked = {Place("digits", 1, method, "vi", "conv"): Asked(3, 1) for method in "abc"}
    text = render(build([single(0.5, "a"), single(0.4, "b")], ["nll"], asked=asked))
    assert "\nb        0.40 (n=1 of 3) *\n" in text
    assert "\nc           —\n" in text
