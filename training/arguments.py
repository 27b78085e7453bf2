"""The command line of `python -m training.train`."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

SETTLE_MINUTES, SETTLE_LR = 3.0, 0.2  # after a mean
LEAST_SETTLING = 1.0  # minutes: held-out batches, and on a GPU the last checkpoint, take a part of them
PACKED_BITS, PACKED_SHARE = 1.0, 0.3  # bits a channel of the codes that answers read; micro-batches where they do


def step_share(text: str) -> float:
    """A share of a row's root mean square: above 0, below 1."""
    share = float(text)
    if not 0 < share < 1:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 1")
    return share


def share(text: str) -> float:
    """A share of a whole: 0 to 1."""
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not a share from 0 to 1")
    return value


def base_arguments(parser: argparse.ArgumentParser) -> None:
    """What concerns a pretrained text tower and the few bits it is stored in."""
    add = parser.add_argument
    add("--base", type=Path, help="folder of training.smollm2: train onto its pretrained text tower and vocabulary")
    add(
        "--text-lr",
        type=float,
        default=0.1,
        help="learning rate of a pretrained text tower, as a share of --lr (default 0.1)",
    )
    add(
        "--text-optimizer",
        choices=("muon", "adamw"),
        default="adamw",
        help="of a pretrained text tower's matrices (default adamw; the other towers' have muon)",
    )
    add(
        "--freeze-minutes",
        type=float,
        default=0.0,
        help="minutes of the schedule in which a pretrained text tower stays as it is (default 0)",
    )
    add(
        "--distill-weight",
        type=float,
        default=0.5,
        help="weight of the loss against the base reading the page's text, where steps carry it (default 0.5)",
    )
    add(
        "--teacher",
        type=Path,
        help="an --out folder whose text tower teaches instead of the base's, such as one of --only text",
    )
    add("--round-step", type=step_share, help="train with weights rounded as export --step stores them")
    add(
        "--round-minutes",
        type=float,
        default=3.0,
        help="minutes at the end of the schedule in which weights are rounded (default 3)",
    )


def average_arguments(parser: argparse.ArgumentParser) -> None:
    """What concerns the average of a run's weights."""
    add = parser.add_argument
    add(
        "--average-every",
        type=int,
        default=0,
        help="take the weights of every so many updates into a mean, at a learning rate that stays constant, and go "
        "on from the mean in the last minutes of the schedule (default 0: no mean); a mean is of one run: of a chain, "
        "only the last one's",
    )
    add("--average-from", type=float, help="minutes of the schedule before weights are averaged (default 0)")
    add(
        "--start-shares",
        type=share,
        nargs="+",
        help="shares of the run's first weights that may be mixed into the mean; held-out batches choose (default 0)",
    )
    add(
        "--settle-minutes",
        type=float,
        help=f"minutes at the end of the schedule that start from the mean (default {SETTLE_MINUTES:g})",
    )
    add(
        "--settle-lr",
        type=share,
        help=f"learning rate when they begin, as a share of --lr; it falls to zero (default {SETTLE_LR:g})",
    )


def complete_average(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Fills in what :func:`average_arguments` leaves open, and refuses options that would do nothing."""
    defaults = dict(average_from=0.0, start_shares=[0.0], settle_minutes=SETTLE_MINUTES, settle_lr=SETTLE_LR)
    given = [name for name in defaults if getattr(args, name) is not None]
    if args.average_every < 0 or (given and not args.average_every):
        parser.error("--average-from, --start-shares, --settle-minutes and --settle-lr need --average-every above 0")
    for name in set(defaults) - set(given):
        setattr(args, name, defaults[name])
    if not args.average_every:
        return
    if not LEAST_SETTLING <= args.settle_minutes < args.total_minutes:
        parser.error(f"--settle-minutes must be at least {LEAST_SETTLING:g} and below --total-minutes")
    if not 0 <= args.average_from < args.total_minutes - args.settle_minutes:
        parser.error("--average-from must be at least 0 and before the last --settle-minutes")


def packed_arguments(parser: argparse.ArgumentParser) -> None:
    """What concerns answers that read a packed prefix."""
    add = parser.add_argument
    add(
        "--packed",
        type=Path,
        help="calibration file: in a share of the micro-batches answers read pages and recordings from codes of rd",
    )
    add("--packed-bits", type=float, help=f"average bits of these codes a channel (default {PACKED_BITS:g})")
    add(
        "--packed-share",
        type=share,
        help=f"share of the micro-batches with pages or recordings whose answers read codes (default {PACKED_SHARE})",
    )


def complete_packed(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Fills in what :func:`packed_arguments` leaves open, and refuses options that would do nothing."""
    if args.packed is None and (args.packed_bits, args.packed_share) != (None, None):
        parser.error("--packed-bits and --packed-share need --packed with a calibration file")
    args.packed_bits = PACKED_BITS if args.packed_bits is None else args.packed_bits
    args.packed_share = PACKED_SHARE if args.packed_share is None else args.packed_share


def log_arguments(parser: argparse.ArgumentParser) -> None:
    """What is shown, measured and saved on the way."""
    add = parser.add_argument
    add(
        "--profile",
        type=int,
        nargs=2,
        metavar=("FIRST", "COUNT"),
        help="record COUNT updates after FIRST and print the kernels that take longest",
    )
    add("--log-every", type=int, default=50, help="updates between log lines (default 50)")
    add(
        "--eval-minutes", type=float, default=2.5, help="minutes between measurements on held-out batches (default 2.5)"
    )
    add(
        "--save-minutes", type=float, default=4.0, help="minutes between checkpoints (default 4; always one at the end)"
    )


def parse_arguments(arguments: list[str] | None = None, description: str | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m training.train", description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--out", type=Path, required=True, help="folder for bf16 weights and progress.json")
    add("--state", type=Path, help="folder for the full state of this machine's chain of runs (default: <out>-state)")
    add("--init", type=Path, help="start from such an --out folder, or an exported checkpoint, when there is no state")
    base_arguments(parser)
    average_arguments(parser)
    packed_arguments(parser)
    add("--fresh", action="store_true", help="ignore an existing state")
    add(
        "--minutes",
        type=float,
        help="wall-clock minutes of this run, start-up and saving included (default: the rest of the total)",
    )
    add(
        "--total-minutes",
        type=float,
        default=50.0,
        help="minutes of the whole chain; the learning rate follows them (default 50)",
    )
    add(
        "--elapsed-minutes",
        type=float,
        help="minutes of the schedule already used at --init, instead of what it says; a state goes on by its own",
    )
    add("--steps", type=int, default=10**9, help="stop after so many updates in this run")
    add(
        "--accumulate",
        type=int,
        default=2,
        help="micro-batches an update (default 2); kinds take turns by their share in SPECS",
    )
    add("--lr", type=float, default=2.2e-3, help="peak learning rate of both optimisers (default 2.2e-3)")
    add("--warmup", type=int, default=50, help="updates of linear warm-up (default 50)")
    add(
        "--decay",
        type=float,
        default=0.6,
        help="last part of the schedule with linear decay to zero (default 0.6; not used with --average-every)",
    )
    add("--aux-weight", type=float, default=0.6, help="weight of the auxiliary character losses (default 0.6)")
    add(
        "--head-updates",
        type=int,
        default=400,
        help="updates in which auxiliary heads that start from nothing on trained towers learn from these without "
        "teaching them (default 400)",
    )
    add("--audio-weight", type=float, default=1.0, help="weight of micro-batches of audio without pages (default 1)")
    add("--workers", type=int, default=12, help="data processes (default 12)")
    add("--slots", type=int, default=20, help="micro-batches of each kind kept ready (default 20)")
    add("--seed", type=int, default=0, help="of weights and data; every run of a chain draws fresh data")
    add("--dataset", default="training.dataset", help="module with SPECS and make_step (default training.dataset)")
    add("--only", nargs="+", default=[], help="only specs of these names, such as: text page")
    add("--sequences", type=int, help="at most so many sequences a micro-batch, for a CPU or little memory")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    add(
        "--compile",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="torch.compile the per-token functions (default: on CUDA)",
    )
    add(
        "--graphs",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="capture steps as CUDA graphs, except those with recordings (default: on CUDA)",
    )
    log_arguments(parser)
    args = parser.parse_args(arguments)
    complete_packed(parser, args)
    complete_average(parser, args)
    args.state = args.state or args.out.with_name(args.out.name + "-state")
    on_gpu = args.device.startswith("cuda")
    args.compile = on_gpu if args.compile is None else args.compile
    args.graphs = on_gpu if args.graphs is None else args.graphs and on_gpu
    return args
