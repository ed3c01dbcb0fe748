"""Every hook a plugin may implement. The docstring of a hook is its contract and holds a complete example.

A plugin is a module named by an entry point of group `bpcbench`:

    [project.entry-points.bpcbench]
    my-plugin = "my_package.plugin"

The module says which version of these hooks it was written for, `BPCBENCH_API = 1`, and implements any of the hooks
below with `@bpcbench.hookimpl`. Registration hooks return classes, not instances: a class is its own configuration.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import pluggy

from bpcbench.api import Dataset, Engine, Evaluator, Inference, Method, Network, Preprocessing, Prerequisite
from bpcbench.records import Publication, StageEvent

API_VERSION = 1
"""The version of the hooks and of the classes of `bpcbench.api`; raised when old plugins would notice a change."""
OLDEST_API_VERSION = 1
"""The oldest version that a plugin may be written for."""

hookspec = pluggy.HookspecMarker("bpcbench")
hookimpl = pluggy.HookimplMarker("bpcbench")


@hookspec
def bpcbench_datasets() -> Iterable[type[Dataset]]:
    """Return data set classes.

    Example:
        import hashlib
        from dataclasses import dataclass
        import numpy as np
        import bpcbench

        @dataclass(frozen=True)
        class Stripes(bpcbench.Dataset):
            "Two classes of 8x8 stripes, horizontal and vertical."
            name = "stripes"

            def facts(self, root):
                return bpcbench.Facts(shape=(1, 8, 8), classes=2, sizes={"train": 40, "test": 20})

            def fingerprint(self, root, split):
                return hashlib.sha256(self.load(root, split).images.tobytes()).hexdigest()

            def load(self, root, split):
                labels = np.arange(40 if split == "train" else 20) % 2
                rng = np.random.default_rng(len(labels))
                images = rng.integers(0, 100, (len(labels), 1, 8, 8))
                images[labels == 0, :, ::2, :] += 155
                images[labels == 1, :, :, ::2] += 155
                return bpcbench.Split(images.astype(np.uint8), labels)

        @bpcbench.hookimpl
        def bpcbench_datasets():
            return [Stripes]
    """
    raise AssertionError("a specification is never called")


@hookspec
def bpcbench_preprocessings() -> Iterable[type[Preprocessing]]:
    """Return preprocessings: maps from raw images to the space that networks see, and back.

    Example:
        from dataclasses import dataclass
        import numpy as np
        import bpcbench

        @dataclass(frozen=True)
        class Centre(bpcbench.Preprocessing):
            "Pixels in [0, 1] minus the mean training image."
            name = "centre"

            def fit(self, data, ctx):
                return {"mean": data.train.images.mean(0) / 255}

            def apply(self, images, arrays):
                return (images / 255 - arrays["mean"]).astype(np.float32)

            def invert(self, images, arrays):
                return images + arrays["mean"].astype(np.float32)

        @bpcbench.hookimpl
        def bpcbench_preprocessings():
            return [Centre]
    """
    raise AssertionError("a specification is never called")


@hookspec
def bpcbench_prerequisites() -> Iterable[type[Prerequisite]]:
    """Return prerequisites: things made once from training data and shared, such as expert trajectories.

    Example:
        from dataclasses import dataclass
        import numpy as np
        import bpcbench

        @dataclass(frozen=True)
        class ClassMeans(bpcbench.Prerequisite):
            "The mean image of every class that is there, in network space."
            name = "class-means"

            def make(self, data, inputs, ctx, member):
                images = inputs.transform.apply(data.train.images)
                means = [images[data.labels == c].mean(0) for c in data.present]
                return {"means": np.stack(means).astype(np.float32)}

        @bpcbench.hookimpl
        def bpcbench_prerequisites():
            return [ClassMeans]
    """
    raise AssertionError("a specification is never called")


@hookspec
def bpcbench_methods() -> Iterable[type[Method]]:
    """Return methods: what turns training data into a coreset.

    Example:
        from dataclasses import dataclass
        import numpy as np
        import bpcbench

        @dataclass(frozen=True)
        class Jitter(bpcbench.Method):
            "Real images plus noise that is annealed step by step."
            name = "jitter"
            resources = bpcbench.Resources()
            steps: int = bpcbench.option(10, "number of annealing steps")
            scale: float = bpcbench.option(0.1, "standard deviation of the first step's noise")

            def distil(self, data, ipc, inputs, ctx):
                chosen = bpcbench.per_class(data.labels, ipc, ctx.seed)
                images = inputs.transform.apply(data.train.images[chosen])
                rng = np.random.default_rng(ctx.seed)
                for step in ctx.steps(self.steps, state={"images": images, "rng": rng}):
                    noise = rng.normal(0, self.scale / (step + 1), images.shape)
                    images += noise.astype(np.float32)
                    ctx.log(noise=float(np.abs(noise).mean()))
                labels = data.labels[chosen]
                return bpcbench.Coreset(images=images, targets=labels, classes=data.facts.classes)

        @bpcbench.hookimpl
        def bpcbench_methods():
            return [Jitter]
    """
    raise AssertionError("a specification is never called")


@hookspec
def bpcbench_inferences() -> Iterable[type[Inference]]:
    """Return inferences: what turns a coreset and a network into a predictive distribution.

    Example:
        from dataclasses import dataclass
        import numpy as np
        import bpcbench

        class NearestMean(bpcbench.Predictive):
            def __init__(self, means):
                self.means = means

            def log_probs(self, images):
                distance = ((images[:, None] - self.means) ** 2).mean((2, 3, 4))
                return (-distance - np.log(np.exp(-distance).sum(1, keepdims=True))).astype(np.float32)

        @dataclass(frozen=True)
        class NearestMeanInference(bpcbench.Inference):
            "Softmax of the negative distance to each class mean; the network is not used."
            name = "nearest-mean"
            resources = bpcbench.Resources()

            def fit(self, coreset, network, inputs, ctx):
                means = np.full((coreset.classes, *coreset.images.shape[1:]), np.inf, np.float32)
                for c in np.unique(coreset.class_ids):
                    means[c] = coreset.images[coreset.class_ids == c].mean(0)
                return NearestMean(means)

        @bpcbench.hookimpl
        def bpcbench_inferences():
            return [NearestMeanInference]
    """
    raise AssertionError("a specification is never called")


@hookspec
def bpcbench_networks() -> Iterable[type[Network]]:
    """Return networks: architectures that inferences and methods build.

    Example:
        from dataclasses import dataclass
        import numpy as np
        import bpcbench

        @dataclass(frozen=True)
        class RandomProjection(bpcbench.Network):
            "A fixed random linear map to `width` features, as a NumPy array."
            name = "random-projection"
            framework = "numpy"
            width: int = bpcbench.option(32, "number of features")

            def build(self, shape, classes, seed):
                inputs = int(np.prod(shape))
                return np.random.default_rng(seed).normal(0, inputs**-0.5, (inputs, self.width))

        @bpcbench.hookimpl
        def bpcbench_networks():
            return [RandomProjection]
    """
    raise AssertionError("a specification is never called")


@hookspec
def bpcbench_evaluators() -> Iterable[type[Evaluator]]:
    """Return evaluators: what turns stored predictions into named numbers.

    Example:
        from dataclasses import dataclass
        import numpy as np
        import bpcbench
        from bpcbench import metrics

        @dataclass(frozen=True)
        class Confidence(bpcbench.Evaluator):
            "How much more confident than accurate the predictions are."
            name = "confidence"

            def metrics(self):
                return [bpcbench.Metric("overconfidence", None, help="mean confidence less accuracy")]

            def score(self, predictions, inputs):
                (p,) = predictions.values()
                confidence = float(np.exp(p.log_probs.max(axis=1)).mean())
                return bpcbench.Scores({"overconfidence": confidence - metrics.accuracy(p.log_probs, p.labels)})

        @bpcbench.hookimpl
        def bpcbench_evaluators():
            return [Confidence]
    """
    raise AssertionError("a specification is never called")


@hookspec
def bpcbench_engines() -> Iterable[type[Engine]]:
    """Return engines: ways to run the stages of a plan. `bpcbench.testing.EngineConformance` tests them.

    Example:
        import json, subprocess, sys, time
        from dataclasses import dataclass
        import bpcbench

        class Processes:
            "Runs each attempt in a process of its own, which reports its outcome itself."

            def __init__(self, folder, slots):
                self.folder, self.slots, self.running, self.news = folder, slots, {}, []
                folder.mkdir(parents=True, exist_ok=True)

            def adopt(self):
                return ()  # nothing survives: --bound

            def submit(self, task):
                file = self.folder / f"{task.attempt}.json"
                file.write_text(json.dumps(task.to_json()))
                command = [sys.executable, "-m", "bpcbench.running.worker", str(file), "--bound"]
                process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
                self.running[task.attempt] = process
                self.news.append(bpcbench.Started(task.attempt))
                return True

            def wait(self, seconds):
                end = time.monotonic() + seconds
                while not self.news and time.monotonic() < end:
                    for attempt, process in list(self.running.items()):
                        if process.poll() is not None:
                            self.release(attempt)
                            message = f"the worker ended with code {process.returncode}"
                            self.news.append(bpcbench.Ended(attempt, message=message))
                    time.sleep(0.01)
                news, self.news = self.news, []
                return news

            def release(self, attempt):
                self.running.pop(attempt).stdin.close()
                (self.folder / f"{attempt}.json").unlink()

            def stop(self, attempts):
                for attempt in attempts:
                    self.running[attempt].terminate()

            def kill(self, attempts):
                for attempt in attempts:
                    self.running[attempt].kill()

            def close(self):
                for attempt, process in list(self.running.items()):
                    process.kill()
                    process.wait()
                    self.release(attempt)

        @dataclass(frozen=True)
        class Plain(bpcbench.Engine):
            "Plain processes: nothing is loaded before they start."
            name = "plain"

            def open(self, run):
                return Processes(run.folder(self.name), self.jobs or 1)

        @bpcbench.hookimpl
        def bpcbench_engines():
            return [Plain]
    """
    raise AssertionError("a specification is never called")


@hookspec
def bpcbench_suites() -> Mapping[str, Path]:
    """Return suites that the plugin ships, by name; users run them as `PLUGIN:NAME`.

    Example:
        from pathlib import Path
        import bpcbench

        @bpcbench.hookimpl
        def bpcbench_suites():
            return {"tiny": Path(__file__).with_name("tiny.yaml")}
    """
    raise AssertionError("a specification is never called")


@hookspec
def bpcbench_published() -> Iterable[Publication]:
    """Return the printed numbers of papers, to stand below measured ones in `bpcbench report --published`.

    A number names the cells that it stands beside by plugin names and options, never by a suite's labels; an axis that
    is not named matches everything. Of several numbers that match a cell, the one that names most is shown, and of
    those the first. The hook is called only when a report asks for published numbers. An error here is reported with
    the plugin's name, and the table is printed without these numbers.

    Example:
        import bpcbench
        from bpcbench.records import Publication, PublishedNumber, PublishedPattern

        CELLS = PublishedPattern(dataset="stripes", method="jitter", inference="nearest-mean")
        NUMBER = PublishedNumber(
            table="Table 1",
            dataset="Stripes",
            ipc=3,
            method="Jitter (ours)",
            metric="acc",
            mean=0.951,
            std=0.004,
            printed=("95.1", "0.4"),
            cells=(CELLS,),
        )

        @bpcbench.hookimpl
        def bpcbench_published():
            note = "Its images have twice the resolution."
            return [Publication("Jitter, 2025", "A. Author: Jittered coresets. 2025.", (NUMBER,), note)]
    """
    raise AssertionError("a specification is never called")


@hookspec
def bpcbench_stage_finished(event: StageEvent) -> None:
    """Observe a stage that has ended, in the process that runs the suite. An error here is reported, not fatal.

    Example:
        import bpcbench

        @bpcbench.hookimpl
        def bpcbench_stage_finished(event):
            if event.status == "failed":
                print(f"{event.label} failed: {event.message}")
    """
