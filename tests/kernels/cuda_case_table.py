"""The cases that the CUDA split kernel is compared in, by name; see :mod:`tests.kernels.cuda_cases`."""

import torch

HALF = torch.float16
# name: page, rows, key planes (digits, bits), value planes, options
CASES = {
    "2 bits": (128, 4, [(128, 2)], [(128, 2)], {}),
    "1 bit": (128, 4, [(128, 1)], [(128, 1)], {"norm": HALF, "value_norm": HALF}),
    "norms in float32": (128, 4, [(128, 2)], [(128, 2)], {"norm": torch.float32, "value_norm": torch.float32}),
    "4 bits, 1 row": (128, 1, [(64, 4)], [(64, 4)], {"norm": HALF}),
    "8 bits, 2 rows": (128, 2, [(64, 8)], [(64, 8)], {}),
    "two planes": (128, 4, [(96, 2), (32, 1)], [(96, 2), (32, 1)], {"norm": HALF, "bias": True}),
    "narrow planes": (128, 3, [(80, 1), (48, 2)], [(80, 1), (48, 4)], {"bias": True}),
    "4 bits and 1": (128, 4, [(64, 4), (64, 1)], [(64, 8), (64, 1)], {}),
    "groups by page": (
        128,
        4,
        [(128, 2)],
        [(128, 2)],
        {"group": "page", "token": torch.float16, "norm": HALF},
    ),
    "groups by map": (128, 4, [(128, 2), (16, 2)], [(128, 2)], {"group": "map", "token": torch.float32}),
    "value groups": (128, 4, [(128, 1)], [(112, 2)], {"value_group": "map", "value_norm": HALF}),
    "value groups by page": (128, 7, [(128, 1)], [(64, 2), (32, 1)], {"value_group": "page", "bias": True}),
    "7 rows": (128, 7, [(128, 2)], [(128, 2)], {"norm": HALF, "value_norm": HALF}),
    "8 rows, 1 bit": (128, 8, [(64, 1)], [(64, 1)], {"bias": True, "odd_bias": True}),
    "16 rows": (128, 16, [(64, 2)], [(64, 2)], {"group": "page"}),
    "12 rows": (128, 12, [(128, 2)], [(64, 2)], {}),
    "256 channels": (128, 4, [(256, 2)], [(256, 2)], {"norm": HALF, "value_norm": HALF}),
    "256 channels, 8 rows": (128, 8, [(256, 2)], [(256, 1)], {"norm": HALF}),
    "pages of 64": (64, 4, [(128, 2)], [(128, 2)], {"norm": HALF, "value_norm": HALF, "bias": True}),
    "pages of 64, 4 and 8 bits": (64, 5, [(64, 4), (64, 2)], [(32, 8), (64, 4)], {"group": "map"}),
    # the kernel folds the scales of keys into the query
    "span folded": (128, 4, [(112, 2), (48, 1)], [(128, 2)], {"query": (torch.float32, "picked"), "norm": HALF}),
    "bf16 folded": (128, 3, [(128, 1)], [(128, 1)], {"query": (torch.bfloat16, "plain")}),
    "gathered and folded": (64, 7, [(64, 2), (96, 2)], [(64, 2)], {"query": (HALF, "picked")}),
    "page folded": (
        128,
        4,
        [(128, 2)],
        [(128, 2)],
        {"group": "page", "query": (torch.float32, "plain"), "token": HALF, "norm": HALF},
    ),
    "map folded, 7 rows": (128, 7, [(64, 2), (32, 2)], [(64, 2)], {"group": "map", "query": (torch.float32, "plain")}),
    "map folded, float32": (
        64,
        2,
        [(96, 4)],
        [(32, 4)],
        {"group": "map", "query": (torch.float32, "plain", torch.float32)},
    ),
    # scales and zero points of keys by token, means
    "keys by token": (
        128,
        4,
        [(128, 2)],
        [(128, 2)],
        {"group": "map", "query": (torch.float32, "plain"), "norm": HALF, "point": True, "mean": HALF, "token": HALF},
    ),
    "keys by token, 7 rows": (
        64,
        7,
        [(80, 4)],
        [(80, 4)],
        {"query": (torch.bfloat16, "plain"), "norm": torch.float32, "point": True, "bias": True},
    ),
    "two heads a store": (
        128,
        4,
        [(256, 2)],
        [(128, 2)],
        {"group": "map", "query": (torch.float32, "plain"), "norm": HALF, "point": True, "mean": torch.float32}
        | {"together": 2, "chunks": 2, "token": HALF, "bias": True},
    ),
    "four heads a store": (
        128,
        4,
        [(512, 2)],
        [(128, 2)],
        {"query": (torch.float32, "plain"), "norm": HALF, "point": True, "together": 4, "chunks": 4}
        | {"token": HALF, "kept": 20, "bias": True},
    ),
    "four heads a store, 16 rows": (
        128,
        16,
        [(512, 2)],
        [(128, 2)],
        {"query": (torch.float32, "plain"), "norm": HALF, "point": True, "together": 4, "chunks": 4}
        | {"token": HALF, "kept": 20},
    ),
    "four narrow heads a store, 7 rows": (
        64,
        7,
        [(256, 2)],
        [(64, 2)],
        {"query": (torch.float32, "plain"), "norm": HALF, "point": True, "together": 4, "chunks": 2, "token": HALF}
        | {"kept": 170},
    ),
    "keys in groups of channels, 7 rows": (
        64,
        7,
        [(128, 4)],
        [(64, 2)],
        {"query": (torch.bfloat16, "plain"), "norm": HALF, "point": True, "chunks": 2},
    ),
    "means behind norms": (
        128,
        4,
        [(112, 2), (48, 1)],
        [(64, 2)],
        {"group": "map", "query": (torch.float32, "picked"), "norm": HALF, "mean": torch.float32, "value_norm": HALF},
    ),
    # slots of a head that are left out
    "slots left out": (
        128,
        4,
        [(128, 2)],
        [(128, 2)],
        {"group": "page", "query": (torch.bfloat16, "plain"), "token": HALF, "kept": 40, "bias": True},
    ),
    "many slots left out": (
        64,
        4,
        [(128, 2)],
        [(128, 2)],
        {"group": "span", "query": (torch.float16, "plain"), "norm": HALF, "kept": 170, "bias": True},
    ),
    # groups name the channels of the second plane
    "channels by page": (
        128,
        4,
        [(128, 2), (32, 2)],
        [(128, 2)],
        {"group": "page", "query": (torch.bfloat16, "gathered"), "token": HALF},
    ),
    "channels by map, 7 rows": (
        64,
        7,
        [(64, 2), (16, 2)],
        [(64, 2)],
        {"group": "map", "query": (torch.float32, "gathered", torch.float32), "bias": True},
    ),
    # bits of codes are lanes: code books
    "bits of 2": (
        128,
        4,
        [(128, 2)],
        [(128, 2)],
        {"group": "map", "query": (torch.float32, "bits"), "norm": HALF, "mean": HALF, "value_norm": HALF},
    ),
    "bits of 3 and 2": (
        128,
        3,
        [(128, 2), (64, 1)],
        [(128, 2), (64, 1)],
        {"query": (torch.bfloat16, "bits"), "norm": torch.float32, "bias": True},
    ),
    "bits of 3, 7 rows": (
        128,
        7,
        [(64, 2), (64, 1)],
        [(64, 2), (64, 1)],
        {"query": (torch.float32, "bits"), "value_norm": HALF},
    ),
    "bits of 3 of few channels": (
        128,
        4,
        [(64, 2), (16, 1)],
        [(64, 2), (16, 1)],
        {"query": (torch.float32, "bits"), "norm": HALF, "value_norm": HALF},
    ),
    "bits of 3 of 48 channels, 7 rows": (
        128,
        7,
        [(192, 2), (48, 1)],
        [(192, 2), (48, 1)],
        {"query": (torch.bfloat16, "bits"), "norm": HALF, "value_norm": HALF},
    ),
    "two norms": (
        128,
        4,
        [(128, 2), (32, 1)],
        [(128, 2), (32, 1)],
        {"query": (torch.float32, "bits"), "norm": HALF, "value_norm": HALF, "high_norm": True},
    ),
    "two norms, means, 1 row": (
        128,
        1,
        [(128, 2), (64, 1)],
        [(128, 2), (64, 1)],
        {"group": "map", "query": (torch.float32, "bits"), "norm": HALF, "mean": torch.float32, "value_norm": HALF}
        | {"high_norm": True, "bias": True},
    ),
    "two norms, 16 channels": (
        128,
        3,
        [(64, 2), (16, 1)],
        [(64, 2), (16, 1)],
        {"query": (torch.bfloat16, "bits"), "norm": torch.float32, "value_norm": torch.float32, "high_norm": True},
    ),
    "two norms, 7 rows": (
        128,
        7,
        [(64, 2), (32, 1)],
        [(64, 2), (32, 1)],
        {"query": (torch.float32, "bits"), "norm": HALF, "value_norm": HALF, "high_norm": True, "bias": True},
    ),
    "two norms, 16 rows": (
        128,
        16,
        [(128, 2), (32, 1)],
        [(128, 2), (32, 1)],
        {"query": (torch.float32, "bits"), "norm": HALF, "value_norm": HALF, "high_norm": True},
    ),
    "two norms of keys, 96 channels": (
        128,
        4,
        [(128, 2), (96, 1)],
        [(128, 2)],
        {"query": (torch.float32, "bits"), "norm": HALF, "value_norm": HALF, "high_norm": "keys"},
    ),
    "bits of 2, pages of 64": (64, 2, [(192, 2)], [(64, 2)], {"query": (torch.float32, "bits")}),
    # scales differ inside of a page
    "groups of 32": (
        128,
        4,
        [(128, 2)],
        [(128, 2)],
        {"group": "page", "query": (torch.bfloat16, "plain"), "parts": 4, "token": HALF, "token_parts": 4},
    ),
    "groups of 32, norms": (
        128,
        3,
        [(64, 2)],
        [(64, 2)],
        {"group": "page", "query": (torch.float32, "plain"), "parts": 4, "token": HALF, "token_parts": 2}
        | {"norm": HALF, "bias": True},
    ),
    "groups of 32, 4 bits": (
        128,
        4,
        [(128, 4)],
        [(128, 4)],
        {"group": "page", "query": (HALF, "plain"), "parts": 4, "token": HALF, "token_parts": 4},
    ),
    "groups of 16, 7 rows": (
        64,
        7,
        [(96, 2)],
        [(96, 2)],
        {"group": "page", "query": (torch.bfloat16, "plain"), "parts": 4, "token": HALF, "token_parts": 3},
    ),
    "8 bits and groups of channels": (
        64,
        2,
        [(32, 8)],
        [(64, 2)],
        {"group": "map", "query": (torch.float32, "plain"), "token": HALF, "token_parts": 4, "bias": True},
    ),
    "256 channels in groups": (
        128,
        4,
        [(256, 2)],
        [(256, 2)],
        {"group": "page", "query": (torch.bfloat16, "plain"), "token": HALF, "token_parts": 8},
    ),
}

# name: case, dims of keys and values, dtype, splits of residual tokens, apart
RESIDUAL_CASES = {
    "bf16": ("span folded", (128, 128), torch.bfloat16, 2, False),
    "fp16, 12 rows": ("12 rows", (64, 64), HALF, 1, False),
    "7 rows apart": ("7 rows", (128, 96), torch.bfloat16, 2, True),
    "80 channels": ("two planes", (80, 80), torch.bfloat16, 1, True),
    "256 channels": ("256 channels, 8 rows", (256, 256), torch.bfloat16, 1, False),
    "pages of 64": ("map folded, float32", (96, 64), HALF, 2, False),
    "4 pages of 64": ("pages of 64", (128, 256), torch.bfloat16, 2, True),
}
