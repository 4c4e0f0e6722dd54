"""Write the ops of exported networks, which `codl kernels` compiles beside the built-in models'.

    python scripts/export_models.py FOLDER ...
    python scripts/exported_ops.py FOLDER/*.onnx

Ops are all that kernels depend on: neither the networks nor PyTorch are needed afterwards.
"""

from __future__ import annotations

import sys
from pathlib import Path

import codl_phone_compilers
from codl.frontend.convert import load_structure
from codl.ir import to_text
from codl_phone_compilers.programs import EXPORTED, needs

HEAD = "# Ops of exported networks, by scripts/exported_ops.py: a network, an op, what is fused.\n"


def main(paths: list[str]) -> None:
    """Write the file of `contrib/codl_phone_compilers`."""
    lines = [
        f"{Path(path).stem}\t{to_text(need.op)}\t{need.mode}\n"
        for path in paths
        for need in needs(load_structure(path))
        if need.op.kind != "onnx"
    ]
    Path(codl_phone_compilers.__path__[0], EXPORTED).write_text(HEAD + "".join(lines))


if __name__ == "__main__":
    main(sys.argv[1:])
