"""From files of others to a coreset that stands alone: what the user says, what the layout says, what is guessed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from bpcbench.api import Preprocessing
from bpcbench.coresets.export import RECIPE, write_folder
from bpcbench.coresets.importing.contents import Contents, read_contents
from bpcbench.coresets.importing.guesses import Unclear, channels_first, labels_of, listed, pick, value_range
from bpcbench.coresets.importing.layouts import LAYOUTS, LabelKind, Order
from bpcbench.coresets.importing.probe import Probe, probe
from bpcbench.coresets.reading import EMBEDDED, check_coreset, open_folder, read_coreset, recipe_of, transform_of
from bpcbench.errors import BpcbenchError, Mistake, Mistakes, UserError
from bpcbench.planning.spec import Spec
from bpcbench.records import FINAL, Array, Arrays, Coreset, Data, Facts, Ref, Split, Transform
from bpcbench.registry.discovery import Registry
from bpcbench.registry.options import build
from bpcbench.store.address import digest
from bpcbench.store.store import STAGE

DataRange = Literal["0-1", "0-255", "normalised"]
Fit = Callable[[Preprocessing, Data], Arrays]
"""Fits a preprocessing to training data."""


@dataclass(frozen=True)
class Request:
    """What the user says of the files; None or empty is for the layout to say, or to be guessed."""

    files: tuple[Path, ...]
    layout: str | None = None
    dataset: str = ""
    data_range: DataRange | None = None
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    preprocessing: Ref | None = None
    order: Order | None = None
    label_kind: LabelKind | None = None
    images: str | None = None
    labels: str | None = None
    weights: str | None = None
    class_ids: str | None = None
    classes: int | None = None
    mirrored: bool | None = None
    label: str = ""


@dataclass(frozen=True, eq=False)
class Imported:
    """A coreset with its preprocessing and description, what was understood of the file, and how it probes."""

    coreset: Coreset
    transform: Transform
    meta: Mapping[str, Any]
    said: tuple[str, ...]
    probe: Probe | None = None

    def write(self, target: Path) -> None:
        """Write the folder that the method `file` reads."""
        write_folder(target, self.coreset, self.transform, self.meta)


def import_coreset(request: Request, registry: Registry, data: Data | None, fit: Fit) -> Imported:
    """Return what the files hold; `data` are the training data of the data set that the user names.

    Everything that only the user can say is asked for in one message.
    """
    found = _exported(request, registry) or _foreign(request, registry, data, fit)
    if data is None:
        return found
    if found.coreset.images.shape[1:] != data.facts.shape or found.coreset.classes != data.facts.classes:
        raise UserError(
            f"the images are {_sides(found.coreset.images.shape[1:])} of {found.coreset.classes} classes, but those of "
            f"{request.dataset} are {_sides(data.facts.shape)} of {data.facts.classes} classes"
        )
    return Imported(found.coreset, found.transform, found.meta, found.said, probe(found.coreset, found.transform, data))


def _exported(request: Request, registry: Registry) -> Imported | None:
    """Return what `bpcbench export` wrote, as it is; None for the files of others."""
    if len(request.files) != 1:
        return None
    (path,) = request.files
    if path.is_dir() and (path / STAGE).is_file():
        artefact = open_folder(path)
        meta = {name: value for name, value in artefact.meta.items() if name not in ("files", "checksum")}
        return Imported(
            read_coreset(artefact), transform_of(artefact), meta, ("a folder of bpcbench export: as it is",)
        )
    if path.is_dir() or path.suffix != ".npz":
        return None
    contents = read_contents(request.files)
    if RECIPE not in contents.text:
        return None
    try:
        meta = json.loads(contents.text[RECIPE])
        arrays = contents.arrays
        coreset = Coreset.restore(arrays, meta["coreset"], recipe_of(meta))
        check_coreset(coreset)
        fitted = meta["stage"]["transform"]
        embedded = {name.removeprefix(EMBEDDED): value for name, value in arrays.items() if name.startswith(EMBEDDED)}
        transform = Transform(Spec.from_json(fitted).build(registry), embedded, str(fitted["address"]))
    except BpcbenchError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise UserError(f"{path} is not what bpcbench export wrote: {str(error)[:200]!r}") from None
    return Imported(coreset, transform, meta, ("an npz file of bpcbench export: as it is",))


def _foreign(request: Request, registry: Registry, data: Data | None, fit: Fit) -> Imported:
    contents = read_contents(request.files)
    if not contents.arrays:
        raise UserError(f"{request.files[0]} holds no arrays of numbers: {listed({}, contents.refused)}")
    questions: list[Mistake] = []
    said: list[str] = []

    def ask(step: Callable[[], Any]) -> Any:
        try:
            return step()
        except Unclear as error:
            questions.append(Mistake(error.option, str(error)))
            return None

    layout = LAYOUTS[request.layout] if request.layout else None
    shape = data.facts.shape if data else None
    classes = request.classes or (data.facts.classes if data else None)
    images: Array | None = None
    name = ask(lambda: pick(contents.arrays, "images", request.images, layout.images if layout else ()))
    if name is not None:
        order = request.order or (layout.order if layout else None)
        ordered = ask(lambda: channels_first(_finite(contents.arrays[name], "images"), order, shape))
        if ordered is not None:
            images = ordered[0]
            said += [f"images: {name or '(unnamed)'} {list(contents.arrays[name].shape)}", ordered[1]]
    others = {other: array for other, array in contents.arrays.items() if other != name}
    labels = ask(lambda: _labels(request, contents, others, layout.labels if layout else (), images, classes))
    if labels is not None and images is not None:
        said += labels[1]
    space = ask(lambda: _space(request, images)) if images is not None else None
    if space is not None:
        said += [space[1]]
        if space[0].plugin != "constants" and data is None:
            questions.append(Mistake("--data-set", f"{space[0].plugin} is fitted to training data: name the data set"))
    if questions:
        what = f"{request.files[0]} does not say everything of itself"
        raise Mistakes(what, questions)
    assert images is not None
    assert labels is not None
    assert space is not None
    return _assembled(request, registry, data, fit, contents, images, labels[0], space[0], said, others)


def _labels(
    request: Request,
    contents: Contents,
    others: Mapping[str, Array],
    known: tuple[str, ...],
    images: Array | None,
    classes: int | None,
) -> Any:
    rows = None if images is None else len(images)
    fitting = {name: array for name, array in others.items() if rows is None or array.shape[:1] == (rows,)}
    chosen = {
        name: array
        for name, array in fitting.items()
        if name not in (request.weights, request.class_ids, "weights", "class_ids")
    }
    name = pick(others if request.labels else chosen, "labels", request.labels, [n for n in known if n in chosen])
    kind = request.label_kind
    if kind is None and request.layout and name is not None:
        kind = LAYOUTS[request.layout].label_kind
        kind = "class" if kind == "logits" and others[name].ndim == 1 else kind
    ids = fitting.get(request.class_ids or "class_ids")
    if request.class_ids and ids is None:
        raise Unclear("--class-ids", f"there is no array {request.class_ids!r} of a number per image")
    raw = None if name is None else others[name]
    return labels_of(raw, rows or 0, kind, classes, ids) if images is not None else None


def _space(request: Request, images: Array) -> tuple[Ref, str]:
    """Return the preprocessing in whose space the images are, and how it is known."""
    if request.preprocessing is not None:
        if request.data_range or request.mean or request.std:
            raise Unclear(
                "--preprocessing", "it says everything of the space; leave out --data-range, --mean and --std"
            )
        return request.preprocessing, f"space: {_words(request.preprocessing)}"
    if request.data_range == "normalised" or request.mean or request.std:
        if request.data_range not in (None, "normalised") or not request.mean or not request.std:
            raise Unclear(
                "--mean", "--data-range normalised needs --mean and --std, a number for each channel or for all"
            )
        given = Ref("constants", {"mean": list(request.mean), "std": list(request.std)})
        return given, f"space: {_words(given)}"
    if request.data_range is not None:
        scale = 1.0 if request.data_range == "0-1" else 1 / 255
        return Ref("constants", {"mean": [0.0], "std": [scale]}), f"data range: {request.data_range}"
    if request.layout is not None:
        known = LAYOUTS[request.layout].space(request.dataset, images.shape[1])
        if known is None:
            raise Unclear(
                "--data-range",
                f"the code of {request.layout} standardises by data set: name a known one with --data-set, or give "
                "--mean and --std, or --preprocessing",
            )
        return known, f"space: {_words(known)} (as the code of {request.layout} does)"
    return value_range(images)


def _assembled(
    request: Request,
    registry: Registry,
    data: Data | None,
    fit: Fit,
    contents: Contents,
    images: Array,
    labels: Any,
    space: Ref,
    said: list[str],
    others: Mapping[str, Array],
) -> Imported:
    weights = others.get(request.weights or "weights")
    if request.weights and weights is None:
        raise UserError(f"--weights: there is no array {request.weights!r}; it holds {listed(contents.arrays)}")
    if weights is not None:
        weights = np.ascontiguousarray(_finite(weights, "weights"), np.float32)
        if weights.shape != (len(images),) or weights.min() < 0:
            raise UserError(
                f"weights are {len(images)} numbers that are not negative, not of shape {list(weights.shape)}"
            )
        said.append(f"weights: {weights.min():.3g} to {weights.max():.3g}")
    mirrored = request.mirrored
    if mirrored is None and request.layout:
        mirrored = LAYOUTS[request.layout].mirrored(images.shape[1])
        said += [f"mirrored copies are appended when it is used (as the code of {request.layout} does)"] * mirrored
    plugin = build(registry, "preprocessing", space)
    assert isinstance(plugin, Preprocessing)
    if data is None:
        facts = Facts(shape=images.shape[1:], classes=labels.classes, sizes={"train": 0})
        data = Data(facts, Split(np.zeros((0, *images.shape[1:]), np.uint8), np.zeros(0, np.int64)))
    elif images.shape[1:] != data.facts.shape:
        raise UserError(
            f"images are {_sides(images.shape[1:])}, but those of {request.dataset} are {_sides(data.facts.shape)}"
        )
    try:
        transform = Transform(plugin, fit(plugin, data))
    except ValueError as error:
        raise UserError(str(error)) from None
    coreset = Coreset(
        images=np.ascontiguousarray(images, np.float32),
        targets=labels.targets,
        class_ids=labels.class_ids,
        classes=labels.classes,
        convention=labels.convention,
        weights=weights,
    )
    check_coreset(coreset)
    description = {**coreset.description(), "mirrored": bool(mirrored)}
    meta = {
        "kind": "coreset",
        "key": digest([dict(contents.files), description]),
        "member": FINAL,
        "label": request.label,
        "coreset": description,
        "stage": {"transform": {**Spec.of(plugin).to_json(), "address": ""}},
        "source": {"files": dict(contents.files), "understood": list(said)},
    }
    return Imported(replace(coreset, recipe=recipe_of(meta)), transform, meta, tuple(said))


def _finite(array: Array, what: str) -> Array:
    if array.dtype.kind not in "iuf":
        raise Unclear(f"--{what}", f"{what} of type {array.dtype} are no numbers")
    if not np.isfinite(array).all():
        raise UserError(f"the {what} hold NaN or infinite values")
    if np.abs(array.astype(np.float32, copy=False)).max(initial=0) > 1e8:
        raise UserError(f"the {what} hold values beyond 1e8, which no pixel is")
    return array


def _words(ref: Ref) -> str:
    return f"{ref.plugin} {json.dumps(dict(ref.options))}" if ref.options else ref.plugin


def _sides(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
