"""`codl bench llm`: how many tokens a second a language model takes in, and makes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict
from typing import Annotated, Any

import typer

from codl.api.job import context_of, digests_of, recorded
from codl.cli import options as opt
from codl.cli.output import TERMINAL, emit, stage
from codl.engine.decoder import Decoder, PlannedStep
from codl.errors import CodlError, UnknownNameError
from codl.evaluation.decoders import WEIGHTS, plan_steps
from codl.frontend.decoders import DECODERS, DecoderSource, Step, read_decoder, step_of
from codl.ir import Network
from codl.ir.plan import Plan
from codl.measure import dataset as datasets
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
from codl.report.text_table import Table
from codl.runtime.loaded import Footprint
from codl.runtime.placement import LocalSoc
from codl.strategies import DEFAULT, STRATEGIES, Context, find
from codl.targets.detect import load_local
from codl.targets.local import LocalTarget
from codl.validate.decoder_check import checked_decoder

USUAL = ("cpu", "gpu", DEFAULT)
#: Other libraries that run decoders.
PEERS = ("ort",)
#: Tokens of the prompt behind which greedy ones are compared.
COMPARED_PROMPT = 8

ModelArgument = Annotated[
    str,
    typer.Argument(
        help=f"A built-in decoder ({', '.join(DECODERS)}), or an .onnx file whose attention is "
        "GroupQueryAttention with a cache.",
    ),
]
PromptOption = Annotated[
    int, typer.Option("-p", "--prompt", min=1, help="Tokens of a prompt, taken in at once: pp.")
]
GenerateOption = Annotated[
    int, typer.Option("-n", "--generate", min=1, help="Tokens made one after the other: tg.")
]
ChunkOption = Annotated[
    int, typer.Option("--chunk", min=1, help="Tokens of a prompt that are computed together.")
]
CapacityOption = Annotated[
    int | None,
    typer.Option(
        "--capacity",
        min=1,
        help="Tokens that the cache has room for; by default as many as there are.",
    ),
]
StrategiesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--strategies",
        help=f"Of {', '.join(STRATEGIES)}, {opt.BY_COMMAS}; the last one is what the result is of. "
        f"By default {','.join(USUAL)}.",
        metavar="A,B",
    ),
]
PeersOption = Annotated[
    list[str] | None,
    typer.Option(
        "--peers", help=f"Other libraries, of {', '.join(PEERS)}, {opt.BY_COMMAS}.", metavar="A,B"
    ),
]
WeightsOption = Annotated[
    str,
    typer.Option(
        "--weights",
        help=f"Where weights may be, of {', '.join(WEIGHTS)}: each step cuts them as is fastest, "
        "or each lies on one processor, the same for prompts and new tokens.",
    ),
]


def bench_llm(
    model: ModelArgument,
    soc: opt.SocOption = "",
    prompt: PromptOption = 512,
    generate: GenerateOption = 128,
    chunk: ChunkOption = 128,
    capacity: CapacityOption = None,
    strategies: StrategiesOption = None,
    peers: PeersOption = None,
    weights: WeightsOption = "anywhere",
    time: opt.TimeOption = "30s",
    precision: opt.PrecisionOption = None,
    predictor: opt.PredictorOption = None,
    search_budget: opt.SearchBudgetOption = opt.SEARCH_BUDGET,
    budget: opt.BudgetOption = None,
    check: opt.CheckOption = True,
    dataset: opt.DatasetsOption = datasets.FOLDER,
    predictors: opt.PredictorsOption = FOLDER,
    json: opt.JsonOption = False,
    output: opt.OutputOption = None,
) -> None:
    """Measure a language model: tokens a second of a prompt (pp512), and of new ones (tg128).

    Both begin with an empty cache, as llama.cpp counts them; nothing is sampled. All strategies
    and peers have turns in one run. Before that the logits of each strategy's plans are compared
    with ONNX Runtime's, once, as `codl run` does. A prompt is taken in by chunks, whose plan is one
    of its own, over the weights and the cache of the other. With --weights once no weights are on
    both processors, which takes the least memory. With the peer `ort` as many greedy tokens as are
    generated are compared with ONNX Runtime's. With --budget there are fewer rounds where time is
    short, and one at least.

    [dim]Examples:[/dim]
    codl bench llm smollm2_135m --soc host --peers ort
    codl bench llm smollm2_135m --soc host --budget 5m
    codl bench llm model.onnx --soc host -p 256 -n 64 --strategies cpu,codl
    codl bench llm model.onnx --soc host --weights once
    """
    seconds = opt.read_budget(time, "--time")
    if weights not in WEIGHTS:
        raise UnknownNameError("place of weights", weights, WEIGHTS)
    described, others = load_local(soc, "local", precision), opt.names_of(peers, PEERS, "peer")
    limit = opt.budget_of(budget)
    names = opt.names_of(strategies, STRATEGIES, "strategy") or [*USUAL]
    room = max(prompt, generate + COMPARED_PROMPT) if capacity is None else capacity
    _check(room, prompt, generate)
    source = read_decoder(model)
    stage(f"Planning {source.name}: {', '.join(names)}")
    steps = step_of(source, min(chunk, prompt), room), step_of(source, 1, room)
    with ExitStack() as stack:
        target = stack.enter_context(closing(LocalTarget(described)))
        context = context_of(
            described,
            dataset,
            predictors,
            predictor,
            budget_s=opt.read_budget(search_budget, "--search-budget"),
            reporter=TERMINAL,
            target=target,
        )
        running_plans = sum(find(name).runs_plans for name in names)
        context = context.within(limit, plans=running_plans * len(steps))
        how: Any = {"weights": weights, "tokens": (prompt, generate)}
        plans = {name: plan_steps(*steps, find(name), context, **how) for name in names}
        stage(f"Loading {source.name}, and its weights, {len(plans) + len(others)} times")
        loaded = {
            name: stack.enter_context(
                _decoder(steps, steps_plans, target, context, source if check else None)
            )
            for name, steps_plans in plans.items()
        }
        running: dict[str, Decodes] = {**loaded}
        if others:
            running["ort"] = _ort(source, prompt, room, described, stack)
        workload = Workload(prompt, generate, steps[1].vocabulary)
        equal = _compared(running, workload, room) if others else {}
        stage(f"Measuring pp{prompt} and tg{generate} in turns", min(seconds, limit.left_s))
        effort = Effort(
            min_rounds=2, min_seconds=seconds, warm=1, max_seconds=limit.share().seconds
        )
        speeds = time_decoders(running, workload, effort, limit)
        of = digests_of(context, steps[1].network, plans={n: pair[1] for n, pair in plans.items()})
        memory = {name: decoder.memory for name, decoder in loaded.items()}
        checks = {
            name: decoder.checked for name, decoder in loaded.items() if decoder.checked is not None
        }
        origin = recorded(target, of, seconds=seconds, prompt=prompt, generate=generate)
    bytes_ = weight_bytes(steps[1].network)
    rows = [_row(name, speeds[name], bytes_, equal, memory, plans) for name in running]
    best = next(row for row in rows if row["strategy"] == names[-1])
    result: dict[str, Any] = {
        "soc": described.to_json(),
        "model": source.name,
        "source": "measured",
        "chunk": steps[0].tokens,
        "capacity": room,
        "weights": weights,
        "weight_bytes": bytes_,
        "prefill": best["prefill"],
        "decode": best["decode"],
        "check_ms": sum(checked.ms for checked in checks.values()) if check else None,
        "checks": {name: asdict(comparison) for name, comparison in checks.items()},
        "rows": rows,
        "stopped": limit.ended,
        **origin,
    }
    emit("bench-llm", result, lambda: _table(result), as_json=json, output=output)
    limit.check("It is of the rounds before.")


def _check(room: int, prompt: int, generate: int) -> None:
    """Refuse a cache that what is measured does not go into."""
    wanted = max(prompt, generate)
    if room < wanted:
        raise CodlError(
            f"A cache of {room} tokens has no room for {wanted}: give --capacity {wanted} or more."
        )


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


def _table(result: Mapping[str, Any]) -> Table:
    words = f"pp{result['prefill']['tokens']}", f"tg{result['decode']['tokens']}"
    title = f"{result['model']}: tokens a second"
    columns = ("strategy", *words, "GB/s", "memory MB", "equal tokens")
    table = Table(*columns, title=title)
    for row in result["rows"]:
        memory, equal = row["memory_bytes"], row["equal_tokens"]
        table.add_row(
            row["strategy"],
            f"{row['prefill']['tokens_per_s']:.1f}",
            f"{row['decode']['tokens_per_s']:.2f}",
            f"{row['decode_gb_per_s']:.1f}",
            "-" if memory is None else f"{memory / 1e6:.0f}",
            "-" if equal is None else str(equal),
        )
    return table
