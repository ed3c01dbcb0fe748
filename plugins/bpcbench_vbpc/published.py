"""The numbers printed in the VBPC paper (`published.csv`), and the cells of bpcbench that each stands beside.

Data sets, methods and metrics of the file have the names of our plugins. Which cells a number matches:

- `main`, `large`: every method under its own inference, with the network its coresets are learned with; FRePo's also
  without normalisation, as in its authors' evaluation. VBPC is compared as the paper sets it: initial images are real,
  Adam, learned labels, the paper's augmentations with noise. Budgets and widths may differ.
- `cifar10c`: the same cells, metrics `CORRUPTION/acc` and `CORRUPTION/nll`, means over severities.
- `ood_detection`: the same cells, metrics `SET/auroc` and so on by the evaluator's default score; the paper does not
  say by which score it detects.
- `cross_inference`: FRePo, RCIG and the baselines under `vi`, VBPC under `frepo`, with `conv-bn`.
- `architecture`: coresets learned with `conv-bn` under their own inference and another network; AlexNet, ResNet-18 and
  VGG-11 in the form of FRePo's code, which the paper builds on but does not state.
- `cost_training`, `cost_inference`: the methods of the main table; experts are `prep s`, training is `distil s`, and
  inference is `infer s` of `bpcbench report --costs`, in seconds there. The paper measures on an RTX 3090.
- `memory`: VBPC with either form of its loss and `vi` with either form of its predictive, where `measure` is on.
- `continual`: the same cells where the classes come in five steps; metrics `after-1/acc` ... `after-5/acc` of the
  evaluator `continual`, by the number of classes seen.
- `ablation_*`: VBPC with one of its options changed, or one of the inference's for `ablation_eval_steps`.

The paper does not say by which formula its NLLs were computed, so `nll` and `nll_batch128` both stand beside them. It
says that all methods have BatchNorm and that the baselines' official code was used, which has instance norm; RCIG's has
none, so its numbers stand beside coresets learned with `conv-bn` and with `conv-nn`. Its table
of architectures repeats the main numbers of the baselines under Conv-BN. The main numbers therefore match both:
paper/main and paper/main-native.

Derived columns are not stored: the drops of `cross_inference` are differences (`report --against-inference`).

Without an equivalent here, and so never shown: `random` of `large`, whose inference is not stated.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from bpcbench.errors import Mistake, Mistakes
from bpcbench.records import COST, Publication, PublishedNumber, PublishedPattern

NUMBERS = Path(__file__).with_name("published.csv")
COLUMNS = ("table", "dataset", "ipc", "setting", "method", "metric", "mean", "std")
OUT_OF_MEMORY = "oom"
NAME = "VBPC, ICLR 2025"
CITATION = "H. Lee, S. Lee and J. Lee. Variational Bayesian pseudo-coreset. ICLR 2025."
NOTE = (
    "Its protocol need not be this one, its ± need not mean the same, and its NLL formula for the baselines is not "
    "stated."
)
_PERCENT = ("acc", "auroc", "aupr_in", "aupr_out")
_NETWORKS: Mapping[str, Mapping[str, Any]] = {
    **{name: {} for name in ("conv-bn", "conv-nn", "conv-gn", "conv-in")},
    **{name: {"form": "faithful"} for name in ("alexnet-nn", "resnet18-bn", "vgg11-gn")},
}
"""The networks of the table of architectures, and the options by which they are the paper's."""
_HOUR = 3600
_COSTS = {"expert_hours": "prep s", "train_hours": "distil s", "seconds": "infer s"}
_MEMORY = {
    ("train", "memory_mb"): "loss MB",
    ("train", "seconds_per_100_steps"): "s/100 steps",
    ("bma", "memory_mb"): "BMA MB",
}
"""The column of the table of costs that a number stands in, by its setting and metric."""
_OWN_INFERENCE = {
    "vbpc": "vi",
    "frepo": "frepo",
    "rcig": "rcig",
    **dict.fromkeys(("bpc-rkl", "bpc-fkl", "bpc-cd", "fbpc"), "sghmc"),
}
_LEARNED_WITH = {"vbpc": ("conv-bn",), "frepo": ("conv-bn",), "rcig": ("conv-bn", "conv-nn")}
"""The networks that coresets of the main table are learned with; those of the others: conv-bn, conv-in."""
_SETTINGS: Mapping[str, Any] = {
    "init": "real",
    "optimiser": "adam",
    "learn_labels": True,
    "augmentation": "paper",
    "noise": True,
}
"""VBPC as in the main table; every ablation of the first kind changes one of these. `noise` is one of the operations of
`augmentation`: where nothing is augmented there is none, whatever it says."""
_PRECISIONS: Mapping[str, Any] = {**_SETTINGS, "updates": 100, "gamma": 100.0, "rho": 10.0}
"""VBPC as in the ablations on CIFAR-100 at 10 images per class."""
_TASKS, _CLASSES = 5, 100
"""The table of continual learning: the steps in which the classes of CIFAR-100 come, and their number."""
_ABLATION_STEPS = 2000
_ABLATIONS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "ablation_init": ("init", {"uniform": "uniform-normalised", "real": "real"}),
    "ablation_optimizer": ("optimiser", {"lamb": "lamb", "adam": "adam"}),
    "ablation_labels": ("learn_labels", {"false": False, "true": True}),
    "ablation_noise": ("noise", {"false": False, "true": True}),
    "ablation_pool_steps": ("updates", {"100": 100, "200": 200, "400": 400}),
    "ablation_gamma": ("gamma", {"10": 10.0, "100": 100.0, "1000": 1e3, "10000": 1e4}),
    "ablation_rho": ("rho", {"1": 1.0, "10": 10.0, "100": 100.0, "1000": 1e3}),
}
"""The option of VBPC that each table changes, and its values by the words of the file."""


def publication(path: Path = NUMBERS) -> Publication:
    """Return the paper's numbers, from a CSV file with the columns `COLUMNS`.

    Raise `Mistakes` that names every line that cannot be read.
    """
    reader = csv.DictReader(path.read_text(encoding="utf-8").splitlines())
    name = str(path)
    if missing := [column for column in COLUMNS if column not in (reader.fieldnames or ())]:
        raise Mistakes(name, [Mistake("", f"no column {', '.join(missing)}", 1, name)])
    numbers, mistakes = [], []
    for line in reader:
        try:
            numbers.append(_number(line))
        except (ValueError, AttributeError, KeyError) as error:
            mistakes.append(Mistake("", f"not a published number: {error}", reader.line_num, name))
    if mistakes:
        raise Mistakes(name, mistakes)
    return Publication(NAME, CITATION, tuple(numbers), NOTE)


def _number(line: Mapping[str, str]) -> PublishedNumber:
    printed = mean, std = line["mean"].strip(), line["std"].strip()
    unit = 100.0 if line["metric"] in _PERCENT else 1.0
    if line["metric"].endswith("_hours"):
        unit, printed = 1 / _HOUR, (f"{mean} h", std)
    return PublishedNumber(
        table=line["table"],
        dataset=line["dataset"],
        ipc=int(line["ipc"]),
        method=line["method"],
        metric=line["metric"],
        # Six decimals hold all that is printed, without the digits that a division by 100 adds.
        mean=None if mean == OUT_OF_MEMORY else round(float(mean) / unit, 6),
        std=round(float(std) / unit, 6) if std else None,
        setting=line["setting"],
        printed=printed,
        cells=tuple(_cells(line)),
    )


def _cells(line: Mapping[str, str]) -> Iterator[PublishedPattern]:
    """Yield the cells beside which a number stands; none if bpcbench has no equivalent."""
    table, method, metric = line["table"], line["method"], line["metric"]
    setting, _, value = line["setting"].partition("=")
    if method not in _OWN_INFERENCE:
        return
    metrics = ("nll", "nll_batch128") if metric == "nll" else (metric,)
    if table in ("main", "large"):
        yield from _at(line, metrics, _own(method))
    elif table == "cifar10c":
        yield from _at(line, (f"{value}/{metric}",), _own(method))
    elif table == "ood_detection":
        other = {"tinyimagenet": "tiny_imagenet", "svhn": "svhn"}[value]
        yield from _at(line, (f"{other}/{metric}",), _own(method))
    elif table == "continual":
        step = int(value) * _TASKS // _CLASSES
        yield from (replace(cell, tasks=_TASKS) for cell in _at(line, (f"after-{step}/{metric}",), _own(method)))
    elif table == "cross_inference" and value == "own":
        yield from _at(line, metrics, _own(method))
    elif table == "cross_inference":
        options = _learned_with("conv-bn", method) if method in ("vbpc", "frepo") else {}
        cells = PublishedPattern(method=method, inference=value, network="conv-bn", method_options=options)
        yield from _at(line, metrics, [cells])
    elif table == "architecture" and value in _NETWORKS:
        options = _learned_with("conv-bn", method)
        own = _OWN_INFERENCE[method]
        cells = PublishedPattern(None, method, own, value, method_options=options, network_options=_NETWORKS[value])
        yield from _at(line, metrics, [cells])
    elif table in ("cost_training", "cost_inference"):
        yield from _at(line, (COST + _COSTS[metric],), _own(method))
    elif table == "memory":
        naive = {"naive": value == "naive"}
        for cells in _own(method):
            if setting == "train":
                cells = replace(cells, method_options={**cells.method_options, **naive})
            else:
                cells = replace(cells, inference_options=naive)
            yield from _at(line, (COST + _MEMORY[setting, metric],), [cells])
    elif table == "ablation_eval_steps":
        yield from _at(line, metrics, [_ablation(_PRECISIONS, steps=int(value))])
    elif table in _ABLATIONS:
        option, values = _ABLATIONS[table]
        if option in _SETTINGS:
            yield from _at(line, metrics, [_ablation({**_SETTINGS, option: values[value]})])
        else:
            changed = {**_PRECISIONS, option: values[value]}
            yield from _at(line, metrics, [_ablation(changed, steps=_ABLATION_STEPS)])


def _at(
    line: Mapping[str, str], metrics: tuple[str, ...], patterns: Iterable[PublishedPattern]
) -> Iterator[PublishedPattern]:
    for pattern in patterns:
        yield replace(pattern, dataset=line["dataset"], metrics=metrics)


def _own(method: str) -> Iterator[PublishedPattern]:
    """Yield a method under its own inference, with the network that its coresets are learned with."""
    for network in _LEARNED_WITH.get(method, ("conv-bn", "conv-in")):
        options = _learned_with(network, method)
        yield PublishedPattern(None, method, _OWN_INFERENCE[method], network, method_options=options)
    if method == "frepo":
        yield PublishedPattern(None, method, "frepo", "conv-nn", method_options=_learned_with("conv-bn", method))


def _learned_with(network: str, method: str) -> Mapping[str, Any]:
    learner = {"network": {"plugin": network}}
    if method == "vbpc":
        return {**learner, **_SETTINGS}
    return learner if method in ("frepo", "rcig") else {"trajectories": learner}


def _ablation(options: Mapping[str, Any], steps: int | None = None) -> PublishedPattern:
    return PublishedPattern(
        method="vbpc",
        inference="vi",
        network="conv-bn",
        method_options={"network": {"plugin": "conv-bn"}, **options},
        inference_options={} if steps is None else {"steps": steps},
    )
