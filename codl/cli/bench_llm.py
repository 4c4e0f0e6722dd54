"""`codl bench llm`: how many tokens a second a language model takes in, and makes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from codl.cli.output import TERMINAL, JsonOption, OutputOption, emit
from codl.jobs import options as opt
from codl.jobs.job import SILENT, Reporter
from codl.jobs.options import option
from codl.measure import FOLDER as DATASETS
from codl.measure.budget import Budget
from codl.predict import FOLDER as PREDICTORS
from codl.report.text_table import Table

if TYPE_CHECKING:
    from codl.api.decoders import DecoderJob

ModelArgument = Annotated[
    str,
    opt.argument(
        "A built-in decoder ({codl.frontend.decoders:DECODERS}), or an .onnx file whose "
        "attention is GroupQueryAttention with a cache.",
    ),
]
PromptOption = Annotated[
    int, option("-p", "--prompt", least=1, help="Tokens of a prompt, taken in at once: pp.")
]
GenerateOption = Annotated[
    int, option("-n", "--generate", least=1, help="Tokens made one after the other: tg.")
]
ChunkOption = Annotated[
    int, option("--chunk", least=1, help="Tokens of a prompt that are computed together.")
]
CapacityOption = Annotated[
    int | None,
    option(
        "--capacity",
        least=1,
        help="Tokens that the cache has room for; by default as many as there are.",
    ),
]
StrategiesOption = Annotated[
    list[str] | None,
    option(
        "--strategies",
        help=f"Of {{codl.strategies:STRATEGIES}}, {opt.BY_COMMAS}; the last one is what the result "
        "is of. By default {codl.cli.help_words:of_decoders}.",
        read=opt.names_of,
        many=True,
        metavar="A,B",
    ),
]
PeersOption = Annotated[
    list[str] | None,
    option(
        "--peers",
        help=f"Other libraries, of {{codl.api.decoders:PEERS}}, {opt.BY_COMMAS}.",
        read=opt.names_of,
        many=True,
        metavar="A,B",
    ),
]
WeightsOption = Annotated[
    str,
    option(
        "--weights",
        help="Where weights may be, of {codl.evaluation.decoders:WEIGHTS}: each step cuts them as "
        "is fastest, or each lies on one processor, the same for prompts and new tokens.",
    ),
]


@dataclass(frozen=True, kw_only=True)
class LlmOptions:
    """A decoder, and how it is measured."""

    model: ModelArgument
    reporter: Reporter = SILENT
    soc: opt.SocOption = "host"
    prompt: PromptOption = 512
    generate: GenerateOption = 128
    chunk: ChunkOption = 128
    capacity: CapacityOption = None
    strategies: StrategiesOption = None
    peers: PeersOption = None
    weights: WeightsOption = "anywhere"
    time_s: Annotated[float, opt.time_option("30s")] = 30.0
    precision: opt.PrecisionOption = None
    predictor: opt.PredictorOption = None
    plan_time_s: opt.PlanTimeOption = None
    check: opt.CheckOption = True
    dataset: opt.DatasetsOption = DATASETS
    predictors: opt.PredictorsOption = PREDICTORS

    def job(self) -> DecoderJob:
        from codl.api.decoders import PEERS, USUAL, DecoderJob
        from codl.strategies import STRATEGIES

        return DecoderJob(
            model=self.model,
            soc=self.soc,
            prompt=self.prompt,
            generate=self.generate,
            chunk=self.chunk,
            capacity=self.capacity,
            strategies=tuple(opt.names_of(self.strategies or (), STRATEGIES, "strategy")) or USUAL,
            peers=tuple(opt.names_of(self.peers or (), PEERS, "peer")),
            weights=self.weights,
            seconds=self.time_s,
            precision=self.precision,
            predictor=self.predictor,
            plan_time_s=self.plan_time_s,
            check=self.check,
            dataset=self.dataset,
            predictors=self.predictors,
            reporter=TERMINAL,
        )


def bench_llm(
    asked: LlmOptions,
    budget_s: opt.BudgetOption = None,
    json: JsonOption = False,
    output: OutputOption = None,
) -> None:
    """Both begin with an empty cache, as llama.cpp counts them; nothing is sampled. All strategies
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
    from codl.api.decoders import measure_decoder

    limit = Budget(budget_s)
    measured = measure_decoder(asked.job(), limit)
    emit("bench-llm", measured, lambda: _table(measured), as_json=json, output=output)
    limit.check("It is of the rounds before.")


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
