"""The speed of language models: tokens a second of a prompt, and of new ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from codl.engine.decoder import Decoder, PlannedStep
from codl.errors import CodlError, UnknownNameError
from codl.evaluation.decoders import WEIGHTS, plan_steps
from codl.frontend.decoders import DecoderSource, Step, read_decoder, step_of
from codl.ir import Network
from codl.ir.plan import Plan
from codl.jobs.job import SILENT, Reporter
from codl.jobs.model import context_of, digests_of, recorded
from codl.measure import dataset as datasets
from codl.measure.budget import Budget
from codl.measure.decoder_speed import (
    DecoderSpeed,
    Decodes,
    Speed,
    Workload,
    greedy,
    time_decoders,
)
from codl.measure.timing import Effort
from codl.predict import FOLDER
from codl.runtime.loaded import Footprint
from codl.runtime.placement import LocalSoc
from codl.strategies import DEFAULT, Context, find
from codl.targets.detect import load_local
from codl.targets.local import LocalTarget
from codl.validate.decoder_check import checked_decoder

USUAL = ("cpu", "gpu", DEFAULT)
#: Other libraries that run decoders.
PEERS = ("ort",)
#: Tokens of the prompt behind which greedy ones are compared.
COMPARED_PROMPT = 8


@dataclass(frozen=True, kw_only=True)
class DecoderJob:
    """A decoder, and how it is measured; the last strategy is what the result is of.

    A `prompt` is taken in by chunks of so many tokens, and so many are generated, each behind an
    empty cache of `capacity` tokens, by default as many as there are. Measuring takes `seconds` at
    least.
    """

    model: str
    soc: str | Path
    prompt: int = 512
    generate: int = 128
    chunk: int = 128
    capacity: int | None = None
    strategies: Sequence[str] = USUAL
    peers: Sequence[str] = ()
    weights: str = "anywhere"
    seconds: float = 30.0
    precision: str | None = None
    predictor: str | None = None
    plan_time_s: float | None = None
    check: bool = True
    dataset: Path = datasets.FOLDER
    predictors: Path = FOLDER
    reporter: Reporter = SILENT

    @property
    def room(self) -> int:
        """Tokens that the cache has room for."""
        usual = max(self.prompt, self.generate + COMPARED_PROMPT)
        return usual if self.capacity is None else self.capacity

    def check_words(self) -> None:
        """Raise `CodlError` for what cannot be measured, before anything is read."""
        if self.weights not in WEIGHTS:
            raise UnknownNameError("place of weights", self.weights, WEIGHTS)
        wanted = max(self.prompt, self.generate)
        if self.room < wanted:
            raise CodlError(
                f"A cache of {self.room} tokens has no room for {wanted}: give --capacity "
                f"{wanted} or more."
            )


def measure_decoder(job: DecoderJob, limit: Budget) -> dict[str, Any]:
    """What `codl bench llm --json` holds; raises `CodlError` where something is missing."""
    job.check_words()
    described = load_local(job.soc, "local", job.precision)
    source = read_decoder(job.model)
    job.reporter.stage(f"Planning {source.name}: {', '.join(job.strategies)}")
    steps = step_of(source, min(job.chunk, job.prompt), job.room), step_of(source, 1, job.room)
    with ExitStack() as stack:
        target = stack.enter_context(closing(LocalTarget(described)))
        context = context_of(
            described,
            job.dataset,
            job.predictors,
            job.predictor,
            plan_time_s=job.plan_time_s,
            reporter=job.reporter,
            target=target,
        )
        how: Any = {"weights": job.weights, "tokens": (job.prompt, job.generate)}
        plans = {n: plan_steps(*steps, find(n), context, **how) for n in job.strategies}
        times = len(plans) + len(job.peers)
        job.reporter.stage(f"Loading {source.name}, and its weights, {times} times")
        loaded = {
            name: stack.enter_context(
                _decoder(steps, pair, target, context, source if job.check else None)
            )
            for name, pair in plans.items()
        }
        running: dict[str, Decodes] = {**loaded}
        if job.peers:
            running["ort"] = _ort(source, job.prompt, job.room, described, stack)
        workload = Workload(job.prompt, job.generate, steps[1].vocabulary)
        equal = _compared(running, workload, job.room) if job.peers else {}
        speeds = _speeds(job, running, workload, limit)
        of = digests_of(context, steps[1].network, plans={n: pair[1] for n, pair in plans.items()})
        sizes = {"seconds": job.seconds, "prompt": job.prompt, "generate": job.generate}
        origin = recorded(target, of, **sizes)
        memory = {name: decoder.memory for name, decoder in loaded.items()}
        checks = {name: d.checked for name, d in loaded.items() if d.checked is not None}
    bytes_ = weight_bytes(steps[1].network)
    rows = [_row(name, speeds[name], bytes_, equal, memory, plans) for name in running]
    best = next(row for row in rows if row["strategy"] == job.strategies[-1])
    return {
        "soc": described.to_json(),
        "model": source.name,
        "source": "measured",
        "chunk": steps[0].tokens,
        "capacity": job.room,
        "weights": job.weights,
        "weight_bytes": bytes_,
        "prefill": best["prefill"],
        "decode": best["decode"],
        "check_ms": sum(checked.ms for checked in checks.values()) if job.check else None,
        "checks": {name: asdict(comparison) for name, comparison in checks.items()},
        "rows": rows,
        "stopped": limit.ended,
        **origin,
    }


def _speeds(
    job: DecoderJob, running: Mapping[str, Decodes], workload: Workload, limit: Budget
) -> Mapping[str, DecoderSpeed]:
    expected_s = min(job.seconds, limit.left_s)
    job.reporter.stage(f"Measuring pp{job.prompt} and tg{job.generate} in turns", expected_s)
    effort = Effort(
        min_rounds=2, min_seconds=job.seconds, warm=1, max_seconds=limit.share().seconds
    )
    return time_decoders(running, workload, effort, limit)


def _decoder(
    steps: tuple[Step, Step],
    plans: tuple[Plan, Plan],
    target: LocalTarget,
    context: Context,
    source: DecoderSource | None,
) -> Decoder:
    prefill, decode = map(PlannedStep, steps, plans)
    return checked_decoder((prefill, decode), target, context.tuning, source=source)


def _ort(source: DecoderSource, prompt: int, room: int, soc: LocalSoc, stack: ExitStack) -> Decodes:
    from codl.measure.peers.ort_decoder import OrtDecoder

    return stack.enter_context(closing(OrtDecoder(source, prompt, room, soc.placement.cores)))


def _compared(running: Mapping[str, Decodes], workload: Workload, room: int) -> dict[str, int]:
    """By name, how many greedy tokens behind a short prompt are ONNX Runtime's, before one is not.

    As many are made as the workload has, or the cache takes.
    """
    prompt = workload.tokens[:COMPARED_PROMPT]
    count = min(workload.generated, room - len(prompt))
    made = {name: greedy(decoder, prompt, count) for name, decoder in running.items()}
    return {
        name: next((i for i, pair in enumerate(zip(tokens, made["ort"], strict=True))
                    if pair[0] != pair[1]), count)
        for name, tokens in made.items()
    }  # fmt: skip


def weight_bytes(network: Network) -> int:
    """What a step reads of weights, packed as they are: every product's matrix, and its scales."""
    return sum(value.nbytes for layer in network.layers for value in layer.weights.values())


def _row(
    name: str,
    speed: DecoderSpeed,
    bytes_: int,
    equal: Mapping[str, int],
    memory: Mapping[str, Footprint],
    plans: Mapping[str, Sequence[Plan]],
) -> dict[str, Any]:
    predicted = [plan.predicted_ms for plan in plans.get(name, ())]
    return {
        "strategy": name,
        "prefill": _speed(speed.prefill),
        "decode": _speed(speed.decode),
        "decode_gb_per_s": 1e-9 * bytes_ * speed.decode.tokens_per_s,
        "equal_tokens": equal.get(name),
        "memory_bytes": memory[name].total if name in memory else None,
        "held_weight_bytes": memory[name].weight_bytes if name in memory else None,
        "predicted_ms": predicted or None,
        "split": [any(0 < c.gpu_ratio < 1 for c in p.chains) for p in plans.get(name, ())] or None,
    }


def _speed(speed: Speed) -> dict[str, Any]:
    latency = {"latency_ms": asdict(speed.latency)}
    return {"tokens": speed.tokens, "tokens_per_s": speed.tokens_per_s, **latency}
