"""From a suite's plugins to stages: the key of a stage is computed from all that determines its result.

Labels, the order of the suite and options marked `key=False` are not part of it; equal stages are one stage.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from bpcbench import metrics
from bpcbench.api import Evaluator, Inference, Method, Network, Prerequisite
from bpcbench.engine import Stage
from bpcbench.keys import SCHEME, Address, digest
from bpcbench.lookup import Lookup
from bpcbench.records import FINAL, Need
from bpcbench.sources import Source, plain_ref
from bpcbench.splits import VALIDATION
from bpcbench.suite import Suite


class Planner:
    """Makes the stages of one suite and keeps each of them once, inputs before what is made from them."""

    def __init__(self, suite: Suite, lookup: Lookup) -> None:
        self.suite = suite
        self.lookup = lookup
        self.stages: dict[str, Stage] = {}
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
        seed: int,
        label: str,
    ) -> Stage:
        """Return the stage that fits an inference and predicts every split that an evaluator asks for."""
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
                members=tuple(source.union),
                label=label,
                plugin=inference.name,
                body={
                    "coreset": address,
                    "inference": fit.description,
                    "network": net.description,
                    "seed": seed,
                    "transform": _transform(transform),
                    "splits": list(source.union.values()),
                },
                needs=(transform.id, coreset.id),
                gpus=inference.gpus,
                family=self.once(_family, coreset.family, fit.digest, net.digest, len(source.union)),
                preload=(*fit.preload, *net.preload),
            )
        )

    def score(self, source: Source, name: str, predict: Stage, transform: Stage, label: str) -> Address:
        """Return the address of what an evaluator makes of predictions."""
        evaluator = self.suite.evaluators[name]
        known = self.lookup.look(evaluator)
        splits = source.splits[name]
        inputs = [str(Address("predict", predict.key, split["member"])) for split in splits]
        given, needs = self.once(self._evaluator_given, source, evaluator, transform)
        payload = {
            "scheme": SCHEME,
            "kind": "score",
            "plugin": known.digest,
            "metrics": metrics.VERSION,
            "inputs": inputs,
            "given": _addresses(given),
        }
        stage = self._add(
            Stage(
                kind="score",
                key=digest(payload),
                members=(FINAL,),
                label=label,
                plugin=evaluator.name,
                body={
                    "evaluator": known.description,
                    "inputs": [{"address": a, **s["wanted"]} for a, s in zip(inputs, splits, strict=True)],
                    "transform": _transform(transform),
                    "given": given,
                },
                needs=(transform.id, predict.id, *needs),
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


def _addresses(given: Mapping[str, Any]) -> dict[str, Any]:
    return {role: made["addresses"] for role, made in given.items()}


def _transform(stage: Stage) -> dict[str, Any]:
    return {"plugin": stage.body["prerequisite"], "address": str(stage.addresses[0])}
