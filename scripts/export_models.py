"""Export networks from PyTorch to ONNX, with weights from a seed: what people bring to codl.

    pip install torch torchvision timm onnxscript
    python scripts/export_models.py FOLDER [--models levit_128s,resnet50] [--legacy]

Nothing is downloaded. The weights are those of a new network; so that every block matters to the
output, batch norms get the statistics of random images, and scales of residual branches that begin
near zero become 0.1. `--legacy` exports by tracing, with the batch as a symbolic size.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
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
#: Scales of residual branches that are smaller begin near zero.
NEAR_ZERO = 1e-3


def build(name: str) -> tuple[Any, Any]:
    """A network with seeded weights, ready to infer, and an image for it."""
    import torch

    library, own_name, size = MODELS[name]
    torch.manual_seed(SEED)
    if library == "timm":
        import timm

        net = timm.create_model(own_name, pretrained=False)
    else:
        import torchvision

        net = getattr(torchvision.models, own_name)(weights=None)
    net.eval()
    with torch.no_grad():
        for parameter in net.parameters():
            first = parameter.reshape(-1)[0]
            if 0 < abs(float(first)) < NEAR_ZERO and bool((parameter == first).all()):
                parameter.fill_(0.1)
        settle(net, torch.rand(4, 3, size, size))
    return net, torch.rand(1, 3, size, size)


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


def export(name: str, folder: Path, *, legacy: bool) -> Path:
    import torch

    net, image = build(name)
    path = folder / f"{name}.onnx"
    names: dict[str, Any] = {"input_names": ["input"], "output_names": ["output"]}
    if legacy:
        names["dynamic_axes"] = {"input": {0: "batch"}, "output": {0: "batch"}}
    write: Callable[..., Any] = torch.onnx.export
    with torch.no_grad():
        write(net, (image,), str(path), **names, dynamo=not legacy, external_data=False)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--models", default=",".join(MODELS), help="by commas")
    parser.add_argument("--legacy", action="store_true", help="trace, and leave the batch open")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    for name in given.models.split(","):
        path = export(name, given.folder, legacy=given.legacy)
        print(f"{path}: {path.stat().st_size / 1e6:.1f} MB", flush=True)


if __name__ == "__main__":
    main()
