"""DeiT-Ti at 224x224 (Touvron et al. 2021) without distillation, to the logits of 1000 classes."""

from __future__ import annotations

from codl.frontend.models import vit_base
from codl.frontend.models.builder import ModelBuilder
from codl.frontend.models.transformer import Transformer

TINY = Transformer(layers=12, features=192, heads=3, widened=768)


def describe(b: ModelBuilder) -> None:
    vit_base.describe(b, TINY)
