"""From a suite's plugins to stages: the key of a stage is computed from all that determines its result.

Labels, the order of the suite and options marked `key=False` are not part of it; equal stages are one stage.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from bpcbench import metrics
from bpcbench.api import Evaluator, Inference, Method, Network, Prerequisite
from bpcbench.data.splits import VALIDATION
from bpcbench.errors import UserError
from bpcbench.planning.datasets import Source, Split, plain_ref
from bpcbench.planning.lookup import Lookup
from bpcbench.records import FINAL, Need, Offer
from bpcbench.running.queue import Stage
from bpcbench.store.address import SCHEME, Address, digest
from bpcbench.suite.model import Suite


class Planner:
    """Makes the stages of one suite and keeps each of them once, inputs before what is made from them."""

    def __init__(self, suite: Suite, lookup: Lookup) -> None:
        self.suite = suite
        self.lookup = lookup
        self.stages: dict[str, Stage] = {}
        self.expected: dict[str, Callable[[], int | None]] = {}
        """How large a stage's result will be, by its family, where a plugin may know."""
        self._memo: dict[tuple[Any, ...], tuple[Any, tuple[Any, ...]]] = {}

    def once(self, compute: Callable[..., Any], *arguments: Any) -> Any:
        """Call a method of the planner once for equal arguments; plugins and sources are compared by object."""
        key = (compute.__name__, *(a if isinstance(a, int | str) else id(a) for a in arguments))
        if key not in self._memo:
            # The arguments are kept with the result: an id names an object only while that object lives.
            self._memo[key] = (compute(*arguments), arguments)
        return self._memo[key][0]

    def transform(self, source: Source, preprocessing: Prerequisite) -> Stage:
        """Return the stage that fits a preprocessing."""
        return self._prerequisite(source, preprocessing, (FINAL,), None)[0]

    def coreset(self, source: Source, ipc: int, method: Method, transform: Stage, seed: int, label: str) -> Stage:
        """Return the stage that distils a coreset."""
        payload: dict[str, Any] = {
            "scheme": SCHEME,
            "kind": "coreset",
            "plugin": self.lookup.look(method).digest,
            "data": source.family,
            "precision": self.suite.precision,
        }
        if method.uses_ipc:
            payload["ipc"] = ipc
        family = digest(payload)
        if method.uses_seed:
            payload["seed"] = seed
        given, needs = self._given(source, method.prerequisites(source.facts, ipc), transform)
        payload["inputs"] = [str(transform.addresses[0]), _addresses(given)]
        native = method.native(source.facts, ipc)
        return self._add(
            Stage(
                kind="coreset",
                key=digest(payload),
                members=(FINAL,),
                label=label,
                plugin=method.name,
                body={
                    **self._data_body(source),
                    "method": self.lookup.look(method).description,
                    "ipc": ipc,
                    "seed": seed if method.uses_seed else 0,
                    "transform": _transform(transform),
                    "given": given,
                    "native": native
                    and {"inference": plain_ref(native.inference), "network": plain_ref(native.network)},
                },
                needs=(transform.id, *needs),
                gpus=method.gpus,
                family=family,
                preload=self.lookup.look(method).preload,
            )
        )

    def predict(
        self,
        source: Source,
        coreset: Stage,
        inference: Inference,
        network: Network,
        transform: Stage,
        seed: int | str,
        label: str,
        splits: Mapping[str, Split] | None = None,
    ) -> Stage:
        """Return the stage that fits an inference and predicts the splits, by default all that evaluators ask for."""
        splits = source.union if splits is None else splits
        fit, net = self.lookup.look(inference), self.lookup.look(network)
        address = str(coreset.addresses[0])
        payload = {
            "scheme": SCHEME,
            "kind": "predict",
            "coreset": address,
            "inference": fit.digest,
            "network": net.digest,
            "precision": self.suite.precision,
            "seed": seed,
        }
        return self._add(
            Stage(
                kind="predict",
                key=digest(payload),
                members=tuple(splits),
                label=label,
                plugin=inference.name,
                body={
                    "coreset": address,
                    "inference": fit.description,
                    "network": net.description,
                    "seed": seed,
                    "transform": _transform(transform),
                    "splits": list(splits.values()),
                },
                needs=(transform.id, coreset.id),
                gpus=inference.gpus,
                family=self.once(_family, coreset.family, fit.digest, net.digest, len(splits)),
                preload=(*fit.preload, *net.preload),
            )
        )

    def reference(self, source: Source, name: str, ipc: int, network: Network, transform: Stage) -> Stage | None:
        """Return the stage whose predictions an evaluator compares those of a cell with, or None if it does not."""
        wanted = self.suite.evaluators[name].reference(source.facts)
        if wanted is None:
            return None
        method: Method = self.lookup.build("method", wanted.method)
        inference: Inference = self.lookup.build("inference", wanted.inference)
        network = network if wanted.network is None else self.lookup.build("network", wanted.network)
        offer = Offer(source.facts, ipc, method.name, method.convention(), network)
        reason = method.skip(source.facts, ipc) or network.skip(source.facts) or inference.accepts(offer)
        if reason:
            raise UserError(f"evaluators.{name}: what it compares with is not possible: {reason}")
        label = f"{source.dataset.name} reference {method.name}"
        coreset = self.once(self.coreset, source, ipc, method, transform, 0, label)
        splits = {split["member"]: split for split in source.splits[name]}
        label += f" / {inference.name} / {network.name}"
        return self.predict(source, coreset, inference, network, transform, "reference", label, splits)

    def score(
        self, source: Source, name: str, predict: Stage, transform: Stage, label: str, reference: Stage | None = None
    ) -> Address:
        """Return the address of what an evaluator makes of predictions, and of those of its reference if it has one."""
        evaluator = self.suite.evaluators[name]
        known = self.lookup.look(evaluator)
        splits = source.splits[name]
        inputs = [_input(predict, split) for split in splits]
        given, needs = self.once(self._evaluator_given, source, evaluator, transform)
        payload = {
            "scheme": SCHEME,
            "kind": "score",
            "plugin": known.digest,
            "metrics": metrics.VERSION,
            "inputs": [item["address"] for item in inputs],
            "given": _addresses(given),
        }
        body = {
            "evaluator": known.description,
            "inputs": inputs,
            "transform": _transform(transform),
            "given": given,
        }
        needs = [transform.id, predict.id, *needs]
        if reference is not None:
            body["reference"] = [_input(reference, split) for split in splits]
            payload["reference"] = [item["address"] for item in body["reference"]]
            needs.append(reference.id)
        if evaluator.uses_coreset:
            body["coreset"] = predict.body["coreset"]
            needs += predict.needs
        stage = self._add(
            Stage(
                kind="score",
                key=digest(payload),
                members=(FINAL,),
                label=label,
                plugin=evaluator.name,
                body=body,
                needs=tuple(needs),
                family=self.once(_family, "score", known.digest, len(inputs)),
                preload=known.preload,
            )
        )
        return stage.addresses[0]

    def _add(self, stage: Stage) -> Stage:
        known = self.stages.get(stage.id)
        if known is None:
            self.stages[stage.id] = stage
            return stage
        extra = tuple(member for member in stage.members if member not in known.members)
        if extra:
            body = dict(known.body)
            body["splits"] = [*known.body["splits"], *(s for s in stage.body["splits"] if s["member"] in extra)]
            known = self.stages[stage.id] = replace(known, members=known.members + extra, body=body)
        return known

    def _prerequisite(
        self, source: Source, plugin: Prerequisite, members: Sequence[str], transform: Stage | None
    ) -> list[Stage]:
        given, needs = self._given(source, plugin.prerequisites(source.facts), transform)
        known = self.lookup.look(plugin)
        payload = {
            "scheme": SCHEME,
            "kind": "prerequisite",
            "plugin": known.digest,
            "data": source.family,
            "precision": self.suite.precision,
            "inputs": [transform and str(transform.addresses[0]), _addresses(given)],
        }
        key = digest(payload)
        family = digest({"plugin": known.digest, "data": source.family})
        self.expected[family] = partial(plugin.expected_bytes, source.facts)
        return [
            self._add(
                Stage(
                    kind="prerequisite",
                    key=key,
                    members=(member,),
                    label=f"{source.dataset.name} {plugin.name}" + (f" {member}" if member != FINAL else ""),
                    plugin=plugin.name,
                    body={
                        **self._data_body(source),
                        "prerequisite": known.description,
                        "transform": transform and _transform(transform),
                        "given": given,
                    },
                    needs=(*([transform.id] if transform else []), *needs),
                    gpus=plugin.gpus,
                    family=family,
                    preload=known.preload,
                )
            )
            for member in members
        ]

    def _given(
        self, source: Source, wanted: Mapping[str, Need], transform: Stage | None
    ) -> tuple[dict[str, Any], list[str]]:
        given, needs = {}, []
        for role, need in sorted(wanted.items()):
            plugin = self.lookup.build("prerequisite", need.plugin)
            stages = self._prerequisite(source, plugin, need.members, transform)
            given[role] = {
                "plugin": self.lookup.look(plugin).description,
                "addresses": [str(address) for stage in stages for address in stage.addresses],
            }
            needs += [stage.id for stage in stages]
        return given, needs

    def _evaluator_given(
        self, source: Source, evaluator: Evaluator, transform: Stage
    ) -> tuple[dict[str, Any], list[str]]:
        return self._given(source, evaluator.prerequisites(source.facts), transform)

    def _data_body(self, source: Source) -> dict[str, Any]:
        return {"dataset": self.lookup.look(source.dataset).description, "holdout": self.suite.split == VALIDATION}


def _family(*parts: str | int) -> str:
    return digest(parts)


def _input(predict: Stage, split: Split) -> dict[str, Any]:
    return {"address": str(Address("predict", predict.key, split["member"])), **split["wanted"]}


def _addresses(given: Mapping[str, Any]) -> dict[str, Any]:
    return {role: made["addresses"] for role, made in given.items()}


def _transform(stage: Stage) -> dict[str, Any]:
    return {"plugin": stage.body["prerequisite"], "address": str(stage.addresses[0])}
