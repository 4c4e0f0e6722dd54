"""Export networks from PyTorch to ONNX, with weights from a seed: what people bring to codl.

    pip install torch torchvision timm onnxscript
    python scripts/export_models.py FOLDER [--models levit_128s,resnet50] [--legacy]
    python scripts/export_models.py FOLDER --held-out        # twenty for figures of plans
    python scripts/export_models.py FOLDER --small --both    # dozens of architectures

Nothing is downloaded. The weights are those of a new network; so that every block matters to the
output, batch norms get the statistics of random images, and scales of residual branches that begin
near zero become 0.1. `--legacy` exports by tracing, with the batch as a symbolic size; `--both` by
either exporter. What PyTorch cannot export is named, and the rest goes on.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

SEED = 0
#: By name: where the network is from, its name there, and the size of its images.
MODELS: dict[str, tuple[str, str, int]] = {
    "efficientformerv2_s0": ("timm", "efficientformerv2_s0", 224),
    "swiftformer_xs": ("timm", "swiftformer_xs", 224),
    "edgenext_xxs": ("timm", "edgenext_xx_small", 256),
    "mobilevit_xxs": ("timm", "mobilevit_xxs", 256),
    "mobilevitv2_050": ("timm", "mobilevitv2_050", 256),
    "levit_128s": ("timm", "levit_128s", 224),
    "mobilenetv2": ("torchvision", "mobilenet_v2", 224),
    "mobilenetv3_large": ("torchvision", "mobilenet_v3_large", 224),
    "efficientnetv2_s": ("torchvision", "efficientnet_v2_s", 384),
    "resnet50": ("torchvision", "resnet50", 224),
    "vgg16": ("torchvision", "vgg16", 224),
}
#: Networks that no collection has, at their own sizes: sixteen of convolutions, four transformers.
HELD_OUT: dict[str, tuple[str, str, int]] = {
    **{
        name: ("torchvision", name, 224)
        for name in [
            "densenet121",
            "googlenet",
            "squeezenet1_1",
            "shufflenet_v2_x1_0",
            "mnasnet1_0",
            "regnet_y_400mf",
            "convnext_tiny",
            "resnet34",
            "efficientnet_b0",
            "mobilenet_v3_large",
        ]
    },
    "inception_v3": ("timm", "inception_v3", 299),
    "edgenext_xxs": ("timm", "edgenext_xx_small", 256),
    "mobilevit_xxs": ("timm", "mobilevit_xxs", 256),
    "ghostnet": ("timm", "ghostnet_100", 224),
    "repvgg_a0": ("timm", "repvgg_a0", 224),
    "efficientnetv2_s": ("torchvision", "efficientnet_v2_s", 224),
    "vit_tiny": ("timm", "vit_tiny_patch16_224", 224),
    "deit_small": ("timm", "deit_small_patch16_224", 224),
    "swin_t": ("torchvision", "swin_t", 224),
    "pit_s": ("timm", "pit_s_224", 224),
}
#: Architectures at sizes that are quick to compare, odd ones among them.
TIMM_SMALL = {
    96: """resnet18 resnet26d legacy_seresnet18 skresnet18 res2net50_14w_8s resnest14d densenet121
        dla34 dpn48b efficientnet_lite0 efficientnet_b0 mixnet_s mnasnet_small mobilenetv2_050
        mobilenetv3_small_050 mobilenetv4_conv_small mobileone_s0 repvgg_a0 ghostnet_050
        repghostnet_050 hrnet_w18_small convnextv2_atto edgenext_xx_small fastvit_t8 mobilevit_xxs
        poolformer_s12 cspresnet50 selecsls42b rexnet_100 pvt_v2_b0 nf_regnet_b0""",
    97: "regnety_002 tf_efficientnet_lite0 lcnet_050 convnext_atto ese_vovnet19b_dw gernet_s",
    131: "inception_v3 xception41",
    224: "levit_128s pit_ti_224 mixer_s32_224 resmlp_12_224 efficientformerv2_s0",
}
TORCHVISION_SMALL = {
    97: "alexnet squeezenet1_1 shufflenet_v2_x0_5 googlenet mnasnet0_5 vgg11_bn",
    112: "swin_v2_t",
}
#: Those whose class wants to know the size.
SIZED_SMALL = {64: "vit_tiny_patch16_224", 112: "swin_tiny_patch4_window7_224"}
#: Scales of residual branches that are smaller begin near zero.
NEAR_ZERO = 1e-3


def listed(*, is_small: bool) -> Mapping[str, tuple[str, str, int]]:
    """The networks to choose from, by name."""
    if not is_small:
        return MODELS | HELD_OUT
    import small_networks

    by_library = {"timm": TIMM_SMALL, "torchvision": TORCHVISION_SMALL, "sized": SIZED_SMALL}
    return {
        **{name: ("small_networks", name, size) for name, size in small_networks.SIZES.items()},
        **{
            name: (library, name, size)
            for library, sizes in by_library.items()
            for size, names in sizes.items()
            for name in names.split()
        },
    }


def build(library: str, name: str, size: int) -> tuple[Any, Any]:
    """A network with seeded weights, ready to infer, and an input for it."""
    import torch

    torch.manual_seed(SEED)
    example = torch.rand(1, 3, size, size)
    if library == "small_networks":
        import small_networks

        net, example = small_networks.network(name), small_networks.example(name)
    elif library == "torchvision":
        import torchvision

        options = {"init_weights": False} if name == "googlenet" else {}
        net = getattr(torchvision.models, name)(weights=None, **options)
    else:
        import timm

        options = {"img_size": size} if library == "sized" else {}
        net = timm.create_model(name, pretrained=False, **options)
    net.eval()
    with torch.no_grad():
        for parameter in net.parameters():
            first = parameter.reshape(-1)[0]
            if 0 < abs(float(first)) < NEAR_ZERO and bool((parameter == first).all()):
                parameter.fill_(0.1)
        settle(net, torch.rand(4, *example.shape[1:]))
    return net, example


def settle(net: Any, images: Any) -> None:
    """Give batch norms the statistics of some images."""
    import torch

    norms = [m for m in net.modules() if isinstance(m, torch.nn.modules.batchnorm._BatchNorm)]
    for norm in norms:
        norm.momentum = None
        norm.train()
    net(images)
    for norm in norms:
        norm.eval()


def export(name: str, source: tuple[str, str, int], path: Path, *, legacy: bool) -> None:
    """Write a network; a traced one has the batch as a symbolic size."""
    import torch

    net, example = build(*source)
    options: dict[str, Any] = {"input_names": ["input"], "dynamo": not legacy}
    if legacy:
        with torch.no_grad():
            outputs = net(example)
        names = (
            [f"output{at}" for at in range(len(outputs))] if type(outputs) is tuple else ["output"]
        )
        options |= {
            "output_names": names,
            "dynamic_axes": {port: {0: "batch"} for port in ("input", *names)},
        }
    write: Callable[..., Any] = torch.onnx.export
    with torch.no_grad():
        write(net, (example,), str(path), **options, external_data=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--models", help="some of them, by commas")
    parser.add_argument("--held-out", action="store_true", help="twenty that no collection has")
    parser.add_argument("--small", action="store_true", help="many architectures, at small sizes")
    parser.add_argument("--legacy", action="store_true", help="trace, and leave the batch open")
    parser.add_argument("--both", action="store_true", help="by both exporters")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    sources = listed(is_small=args.small)
    chosen = args.models.split(",") if args.models else HELD_OUT if args.held_out else sources
    failed = []
    for name in chosen:
        for legacy in (False, True) if args.both else (args.legacy,):
            path = args.folder / (f"{name}_traced.onnx" if args.both and legacy else f"{name}.onnx")
            try:
                export(name, sources[name], path, legacy=legacy)
            except Exception as error:  # PyTorch's exporters raise whatever an operator raised
                failed.append(path.stem)
                print(f"{path.stem}: {type(error).__name__}: {str(error)[:200]}", flush=True)
                continue
            print(f"{path}: {path.stat().st_size / 1e6:.1f} MB", flush=True)
    if failed:
        print(f"PyTorch exported all but {', '.join(failed)}.")


if __name__ == "__main__":
    main()
