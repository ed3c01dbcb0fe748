"""The command line: its parser, and how errors become messages and exit codes."""

from __future__ import annotations

import argparse
import importlib
import math
import sys
from collections.abc import Sequence
from typing import NoReturn

from bpcbench.errors import BpcbenchError, reason, shortened
from bpcbench.session import DEFAULT_OUT
from bpcbench.streams import guarded

KINDS = (
    "datasets",
    "methods",
    "preprocessings",
    "prerequisites",
    "inferences",
    "networks",
    "evaluators",
    "engines",
    "plugins",
    "suites",
)
SCAFFOLDS = ("method", "dataset", "inference", "network", "evaluator", "engine", "preprocessing")
FORMATS = ("text", "md", "latex", "csv", "json")
PLAIN_FORMATS = ("text", "md", "csv")
LAYOUTS = ("wide", "paper")
MESSAGE_LENGTH, LINE_LENGTH = 20_000, 2500
"""The lengths at which an error's message, and each line of it, are cut."""
USAGE_LENGTH = 1000
"""The length at which a message about words that the parser does not take is cut."""


class _Parser(argparse.ArgumentParser):
    """A parser that says what a suite may be where none is given, and cuts long messages."""

    def error(self, message: str) -> NoReturn:
        if message.endswith("arguments are required: suite"):
            message = (
                "a suite is required: a shipped one (`bpcbench list suites`), PLUGIN:NAME, or a YAML file; "
                f"for example: {self.prog} quickstart"
            )
        super().error(shortened(message, USAGE_LENGTH))


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    top = _Parser(
        prog="bpcbench",
        description="Benchmark Bayesian pseudo-coresets: run suites, compare methods, print tables as papers do.",
    )
    top.add_argument("--version", action="store_true", help="print the version and leave")
    commands = top.add_subparsers(dest="command", metavar="COMMAND")

    run = _suite_command(commands, "run", "suite:run", "run a suite; what is cached is not run again")
    run.add_argument("--jobs", type=_positive, metavar="N", help="stages at a time (default: CPUs / threads)")
    run.add_argument("--in-process", action="store_true", help="run everything in this process")
    run.add_argument("--detach", action="store_true", help="on a cluster: submit what is ready, and leave it running")
    run.add_argument("--pdb", action="store_true", help="in this process, with a debugger at the first error")
    run.add_argument("--skip-missing", action="store_true", help="leave out data sets that are not there")
    run.add_argument("--recompute", action="append", default=[], metavar="PLUGIN", help="make its results anew")
    run.add_argument("--no-mlflow", action="store_true", help="do not log to MLflow; `sync` can do it later")
    run.add_argument("--quiet", action="store_true", help="print failures and the table only")

    plan = _suite_command(commands, "plan", "suite:plan", "say what a run would do, and what it would cost")
    plan.add_argument("--skip-missing", action="store_true", help="leave out data sets that are not there")
    plan.add_argument("--recompute", action="append", default=[], metavar="PLUGIN", help="as in run")
    plan.add_argument("--all", action="store_true", help="list every stage, not only a summary")
    plan.add_argument("--json", action="store_true", help="every stage as JSON")
    plan.add_argument(
        "--rate",
        type=_rate,
        metavar="OPS",
        help="operations per second, such as 1e13, for a plan without data",
    )

    report = _suite_command(commands, "report", "suite:report", "print the table of what the store has", view=True)
    report.add_argument(
        "--format", type=_format, choices=(*FORMATS, "html"), default="text", help="html: a page with pictures"
    )
    report.add_argument("--open", action="store_true", help="show the page in a browser")
    report.add_argument(
        "--layout",
        choices=LAYOUTS,
        default="wide",
        help="wide: methods as lines (default); paper: data sets and ipc as rows, methods as columns",
    )
    report.add_argument("--metrics", metavar="A,B", help="metrics to show (default: the suite's)")
    report.add_argument("--published", action="store_true", help="put published numbers below measured ones")
    report.add_argument("--output", metavar="FILE", help="write to a file")
    instead = report.add_mutually_exclusive_group()
    instead.add_argument("--against", metavar="METHOD", help="paired differences to a method, instead of the table")
    instead.add_argument(
        "--against-inference", metavar="LABEL", help="paired differences to an inference, of the same coresets"
    )
    instead.add_argument(
        "--against-network", metavar="LABEL", help="paired differences to a network, of the same coresets"
    )
    instead.add_argument("--costs", action="store_true", help="seconds, memory and bytes, instead of the table")

    status = commands.add_parser("status", help="what runs, what failed and what is left in a store")
    status.add_argument("suite", nargs="?", help="name of a suite that was run (default: all)")
    status.add_argument("--json", action="store_true")
    status.set_defaults(run="status:status")
    logs = commands.add_parser(
        "logs",
        help="what a stage printed; --follow goes on while it runs",
        description="Print the log of a stage. Without words it is the one that runs or, if none does, that failed.",
    )
    logs.add_argument(
        "cell",
        nargs="*",
        metavar="WORD",
        help="words of its label, such as vbpc ipc 10 seed 0, or predict vbpc vi; or the start of its key",
    )
    logs.add_argument("-f", "--follow", action="store_true", help="print what is added until the stage is over")
    logs.set_defaults(run="status:logs")

    compare = commands.add_parser("compare", help="what differs between two invocations: options, versions, numbers")
    compare.add_argument("before", metavar="A", help="NAME[:DIGEST] of a suite that was run, STORE, or STORE:NAME")
    compare.add_argument("after", metavar="B", help="the other one; differences are B less A")
    compare.add_argument("--metrics", metavar="A,B", help="metrics to compare (default: the suite's)")
    compare.add_argument("--format", type=_format, choices=(*PLAIN_FORMATS, "html"), default="text")
    compare.add_argument("--output", metavar="FILE", help="write to a file")
    compare.add_argument("--open", action="store_true", help="show the page in a browser")
    compare.set_defaults(run="compare:compare")
    _out(compare)

    board = commands.add_parser("leaderboard", help="results of several stores or suites in one static page")
    board.add_argument(
        "sources",
        nargs="+",
        metavar="[LABEL=]SOURCE",
        help="STORE, STORE:NAME or NAME[:DIGEST]; LABEL is what it is called",
    )
    board.add_argument("--title", default="Leaderboard", metavar="TEXT", help="what stands over it")
    board.add_argument("--metrics", metavar="A,B", help="metrics to show (default: the suites')")
    board.add_argument("--output", metavar="FILE", help="write to a file (default: leaderboard.html)")
    board.add_argument("--open", action="store_true", help="show the page in a browser")
    board.set_defaults(run="leaderboard:leaderboard")
    _out(board)

    anytime = _suite_command(
        commands, "anytime", "curves:anytime", "run a suite and evaluate its coresets' snapshots: metrics against time"
    )
    anytime.add_argument("--steps", type=_steps, metavar="A,B", help="snapshots to evaluate (default: all)")
    anytime.add_argument("--metrics", metavar="A,B", help="metrics to show (default: the suite's)")
    anytime.add_argument("--format", type=_format, choices=PLAIN_FORMATS, default="text")
    anytime.add_argument("--pictures", metavar="FOLDER", help="draw the curves into a folder, as SVG")
    anytime.add_argument("--jobs", type=_positive, metavar="N", help="stages at a time (default: CPUs / threads)")
    anytime.add_argument("--quiet", action="store_true", help="print failures and the curves only")

    tune = _suite_command(commands, "tune", "suite:tune", "try the settings a suite declares, on the validation split")
    tune.add_argument(
        "--output", metavar="FILE", help="preset to write, with its trials in records/ beside it (default: print)"
    )
    tune.add_argument("--jobs", type=_positive, metavar="N", help="stages at a time (default: CPUs / threads)")
    tune.add_argument("--quiet", action="store_true", help="print failures and the preset only")

    figure = _suite_command(
        commands, "figure", "figures:figure", "draw a suite's coresets before and after as the paper does", view=True
    )
    figure.add_argument("--output", metavar="FOLDER", help="where to write the PNG files (default: figures/SUITE)")
    figure.add_argument("--seed", type=_seed, default=0, metavar="N", help="distillation seed to draw (default: 0)")

    data = commands.add_parser("data", help="list data sets and where they are looked for; download them")
    actions = data.add_subparsers(dest="action", metavar="ACTION", required=True)
    have = actions.add_parser("list", help="say which data sets are there, and whether they are the official ones")
    have.add_argument("--json", action="store_true")
    have.set_defaults(run="data:listing")
    get = actions.add_parser("get", help="download a data set's official files; an interrupted download is resumed")
    get.add_argument("name")
    get.set_defaults(run="data:get")
    for action in (have, get):
        _data(action)

    schema = commands.add_parser(
        "schema",
        help="print a JSON schema of suites, for editors",
        description="Print a JSON schema of suites for editors. It has the options of every plugin, so all are loaded.",
    )
    schema.set_defaults(run="catalogue:schema")

    listing = commands.add_parser("list", help="list what plugins bring")
    listing.add_argument("kind", nargs="?", choices=KINDS)
    listing.add_argument("--json", action="store_true")
    listing.set_defaults(run="catalogue:listing")

    show = commands.add_parser("show", help="describe a plugin: options, types, defaults")
    show.add_argument("name")
    show.add_argument("--json", action="store_true")
    show.set_defaults(run="catalogue:show")

    _author_commands(commands)

    ui = commands.add_parser("ui", help="open the MLflow UI, on 127.0.0.1, at a suite's runs")
    ui.add_argument("suite", nargs="?", help="name of a suite that was run (default: the latest)")
    ui.add_argument("--port", type=_positive, default=5000)
    ui.add_argument("--no-browser", action="store_true", help="print the address only")
    ui.set_defaults(run="tracking:ui")

    sync = commands.add_parser("sync", help="add to MLflow whatever the store has and MLflow lacks")
    sync.add_argument("suite", nargs="?", help="name of a suite that was run (default: all)")
    sync.set_defaults(run="tracking:sync")

    doctor = commands.add_parser("doctor", help="versions, device, threads, locks, plugins, data sets, MLflow")
    doctor.add_argument("--engine", metavar="NAME|SUITE", help="also run a tiny job on an engine, or on a suite's")
    doctor.add_argument("--gpus", type=float, default=0.0, metavar="N", help="GPUs that the job asks for (default: 0)")
    doctor.add_argument("--wait", type=float, default=300.0, metavar="SECONDS", help="wait so long for it (300)")
    doctor.set_defaults(run="upkeep:doctor")

    export = _coreset_commands(commands)

    _store_commands(commands.add_parser("store", help="list, prune, merge or verify what the store keeps"))

    for command in (status, logs, ui, sync, doctor, export):
        _out(command)
    _data(doctor)
    return top


def _author_commands(
    commands: argparse._SubParsersAction,  # type: ignore[type-arg]
) -> None:
    """Add `new` and `check`."""
    text = "write a package with a plugin that works, to be changed into your own"
    new = commands.add_parser("new", help=text, description=text)
    new.add_argument("kind", choices=SCAFFOLDS, metavar="KIND", help=", ".join(SCAFFOLDS))
    new.add_argument("name", metavar="NAME", help="the plugin's name in suites: lower-case letters, digits, hyphens")
    new.add_argument("--output", metavar="FOLDER", help="a folder that does not exist yet (default: ./bpcbench-NAME)")
    new.set_defaults(run="authors:new")
    text = "run the conformance tests of a plugin, without a test file"
    check = commands.add_parser("check", help=text, description=text)
    check.add_argument("name", metavar="NAME", help="a plugin's name, as in suites")
    check.add_argument("overrides", nargs="*", metavar="OPTION=VALUE", help="e.g. steps=20 network.width=8")
    check.add_argument(
        "--kind", choices=[kind.removesuffix("s") for kind in KINDS[:-2]], help="if several have the name"
    )
    check.add_argument("--network", metavar="NAME", help="for an inference (default: conv-bn of width 8)")
    check.add_argument("--learns", action="store_true", help="also ask a method or an inference to beat chance")
    check.set_defaults(run="authors:check")
    _data(check)


def _coreset_commands(
    commands: argparse._SubParsersAction,  # type: ignore[type-arg]
) -> argparse.ArgumentParser:
    """Add `import` and `export`; return the latter."""
    text = "make a coreset of files that others distilled, for the method `file`"
    bring = commands.add_parser("import", help=text, description=text)
    bring.add_argument(
        "files", nargs="+", metavar="FILE", help="npz, npy, safetensors, pt, flax checkpoint, or a folder"
    )
    bring.add_argument(
        "--as", dest="name", required=True, metavar="NAME", help="its name; it lies in STORE/imported/NAME"
    )
    bring.add_argument(
        "--to", metavar="FOLDER", help="a folder that does not exist yet, instead of STORE/imported/NAME"
    )
    bring.add_argument("--layout", metavar="CODE", help="whose code saved it: rcig, frepo, rfad, kip, dc, datm")
    bring.add_argument("--data-set", metavar="NAME", help="what it was distilled from: fits, checks and probes it")
    bring.add_argument("--data-range", choices=("0-1", "0-255", "normalised"), help="what the values are")
    bring.add_argument("--mean", type=_numbers, metavar="A,B,C", default=(), help="of each channel, for `normalised`")
    bring.add_argument("--std", type=_numbers, metavar="A,B,C", default=(), help="of each channel, for `normalised`")
    bring.add_argument(
        "--preprocessing", metavar="YAML", help="in whose space it is, e.g. '{plugin: zca, centred: false}'"
    )
    bring.add_argument("--order", choices=("nchw", "nhwc"), help="the axes of the images")
    bring.add_argument("--labels-as", choices=("class", "probabilities", "centred", "logits"), help="what labels are")
    for name, what in (
        ("images", "images"),
        ("labels", "labels"),
        ("weights", "weights of rows"),
        ("class-ids", "classes"),
    ):
        bring.add_argument(f"--{name}", metavar="ARRAY", help=f"the array with the {what}")
    bring.add_argument("--classes", type=_positive, metavar="N", help="number of classes")
    bring.add_argument(
        "--mirror", action=argparse.BooleanOptionalAction, default=None, help="append mirrored copies when it is used"
    )
    bring.set_defaults(run="coresets:bring")
    _out(bring)
    _data(bring)
    export = commands.add_parser("export", help="copy a coreset, with all it needs, out of the store")
    export.add_argument(
        "address", help="its address, the start of its key, or the folder of an exported or imported one"
    )
    export.add_argument("target", help="a folder that does not exist yet")
    export.add_argument("--format", choices=("safetensors", "npz", "png"), default="safetensors")
    export.set_defaults(run="coresets:export")
    return export


def _store_commands(store: argparse.ArgumentParser) -> None:
    actions = store.add_subparsers(dest="action", metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="list the members of the store")
    listing.add_argument("--json", action="store_true")
    listing.set_defaults(run="store:listing")
    prune = actions.add_parser("prune", help="delete members, interrupted attempts and damaged members")
    prune.add_argument("--scratch", action="store_true", help="also interrupted attempts and damaged members")
    prune.add_argument("--yes", action="store_true", help="really delete; otherwise only print what would be deleted")
    prune.set_defaults(run="store:prune")
    for action in (listing, prune):
        action.add_argument("--kind", choices=("prerequisite", "coreset", "predict", "score"))
        action.add_argument("--older", metavar="DAYS", type=_days, help="only members committed longer ago")
    merge = actions.add_parser("merge", help="bring what other stores hold into this one; they are only read")
    merge.add_argument("others", nargs="+", metavar="OTHER", help="another store")
    merge.add_argument("--dry-run", action="store_true", help="only print what would happen")
    merge.set_defaults(run="store:merge")
    verify = actions.add_parser("verify", help="derive every key again and compare every checksum")
    verify.add_argument("--set-aside", action="store_true", help="move damaged members to damaged/")
    verify.set_defaults(run="store:verify")
    for action in (listing, prune, merge, verify):
        _out(action)


def _suite_command(
    commands: argparse._SubParsersAction,  # type: ignore[type-arg]
    name: str,
    run: str,
    text: str,
    *,
    view: bool = False,
) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
    command.add_argument("suite", help="a shipped suite's name, PLUGIN:NAME, or a YAML file")
    command.add_argument(
        "overrides", nargs="*", default=[], metavar="KEY=VALUE", help="e.g. 'ipc=[1,10]' methods.kmeans.iterations=50"
    )
    _out(command)
    if not view:
        command.add_argument("--device", metavar="NAME", help="auto, cpu, cuda, ...")
        command.add_argument(
            "--max-cells", type=_positive, metavar="N", help="the largest grid to plan (default: 100,000 cells)"
        )
        command.add_argument(
            "--memory", type=_gigabytes, metavar="GB", help="skip cells that need more (default: what the device has)"
        )
        command.add_argument("--unverified", action="store_true", help="admit unofficial data, marked `subset`")
        _data(command)
    command.set_defaults(run=run)
    return command


def _gigabytes(text: str) -> float:
    """Return a size in GB; raise ArgumentTypeError unless it is a number above 0."""
    try:
        size = float(text)
    except ValueError:
        size = math.nan
    if not 0 < size < math.inf:
        raise argparse.ArgumentTypeError(f"expected gigabytes above 0, such as 24, got {text!r}")
    return size


def _out(command: argparse.ArgumentParser) -> None:
    command.add_argument("--out", default=DEFAULT_OUT, metavar="FOLDER", help=f"the store (default: {DEFAULT_OUT})")


def _data(command: argparse.ArgumentParser) -> None:
    command.add_argument("--data", metavar="FOLDER", help="where data sets lie (default: $BPCBENCH_DATA)")


def _format(text: str) -> str:
    return {"markdown": "md", "tex": "latex", "txt": "text"}.get(text, text)


def _steps(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected numbers of steps such as 0,100,1000, got {text!r}") from None


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(word) for word in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected numbers such as 0.49,0.48,0.45, got {text!r}") from None


def _days(text: str) -> float:
    days = float(text)
    if not 0 <= days < math.inf:
        raise argparse.ArgumentTypeError("must be a number of days, 0 or more")
    return days


def _seed(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"expected 0, 1, 2, ..., got {text!r}")
    return int(text)


def _rate(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"expected operations per second, such as 10e12, got {text!r}")
    return value


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be above 0")
    return value


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0 done, 1 something failed, 2 wrong input, 128+n stopped by a signal."""
    with guarded() as streams:
        code = _guarded(list(sys.argv[1:] if argv is None else argv))
        if lost := streams.lost():
            print(f"bpcbench: the output could not be written: {lost}", file=sys.stderr)
            code = code or 1
    return code


def _guarded(words: list[str]) -> int:
    """Run a command; whatever a user can cause, an operating system's refusal included, becomes one message."""
    try:
        return _command(words)
    except BpcbenchError as error:
        message = "\n".join(shortened(line, LINE_LENGTH) for line in str(error).split("\n"))
        print(f"bpcbench: {shortened(message, MESSAGE_LENGTH)}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        print(f"bpcbench: {reason(error)}", file=sys.stderr)
        return 2


def _command(words: list[str]) -> int:
    top = parser()
    arguments, rest = top.parse_known_args(words)
    if arguments.version:
        from bpcbench import __version__

        print(f"bpcbench {__version__}")
        return 0
    if arguments.command is None:
        top.print_help()
        return 0
    # argparse takes positionals in one block only; overrides may also stand after options.
    late = [word for word in rest if not word.startswith("-") and "=" in word and hasattr(arguments, "overrides")]
    if len(late) != len(rest):
        top.error(f"unrecognized arguments: {' '.join(word for word in rest if word not in late)}")
    if late:
        arguments.overrides += late
    arguments.words = words
    module, _, function = arguments.run.partition(":")
    command = getattr(importlib.import_module(f"bpcbench.commands.{module}"), function)
    return int(command(arguments))
