"""kvmm in the browser: ``python app.py``, then open the address it prints."""

from __future__ import annotations

import argparse
import importlib.util
import os
import signal
import socket
import sys
import tempfile

# Before Gradio is imported: no analytics, no version check, nothing leaves this machine.
os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="app.py", description="Ask images, PDFs and recordings with a KV cache of one to two bits a value."
    )
    parser.add_argument(
        "--model",
        action="append",
        help="folder or hub id of a supported model; repeat to offer several; default: the embedded one",
    )
    parser.add_argument("--device", help="torch device; default: the first GPU, else the CPU")
    parser.add_argument("--dtype", choices=("float32", "float16", "bfloat16"), help="default: chosen for the device")
    parser.add_argument("--policy", default="balanced", help="cache policy selected first (default: %(default)s)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; 0.0.0.0 for other machines")
    parser.add_argument("--port", type=int, help="port; default: the first free one from 7860")
    parser.add_argument("--auth", metavar="USER:PASSWORD", help="ask visitors for this user name and password")
    parser.add_argument(
        "--cache-budget",
        metavar="SIZE",
        help="memory for the caches of all visitors, such as 512MiB; those used longest ago are dropped and filled "
        "again when asked (default: half of the free GPU memory, or a quarter of the free memory)",
    )
    parser.add_argument(
        "--max-upload", type=int, metavar="MIB", default=100, help="largest upload in MiB (default: %(default)s)"
    )
    parser.add_argument(
        "--mcp", action="store_true", help='also serve the endpoints as MCP tools; needs pip install "kvmm[mcp]"'
    )
    parser.add_argument("--max-pages", type=int, help="most pages taken from one PDF")
    parser.add_argument(
        "--max-new-tokens", type=int, default=256, help="length limit of an answer (default: %(default)s)"
    )
    parser.add_argument(
        "--graph",
        action=argparse.BooleanOptionalAction,
        help="generate answers by CUDA graphs (default: where the model is on a GPU)",
    )
    parser.add_argument(
        "--data", metavar="FOLDER", help="folder of benchmarks that visitors may evaluate, beside the bundled mini sets"
    )
    parser.add_argument("--open", action="store_true", help="open the page in the default browser")
    return parser.parse_args(argv)


def check_address(host: str, port: int | None) -> None:
    """Find out before the model loads whether the address is free; Gradio would end its server thread instead."""
    from kvmm.errors import KVMMError

    try:
        socket.create_server((host, port or 0)).close()
    except (OSError, OverflowError) as error:
        where = f"{host}:{port}" if port else host
        raise KVMMError(f"cannot listen on {where}: choose another --port or --host") from error


def main(argv: list[str] | None = None) -> int:
    args = parse_args(argv)
    if "GRADIO_TEMP_DIR" in os.environ:
        return run(args)
    # Uploads in a folder of this app's own: nobody else reads or deletes them, and they end with it.
    with tempfile.TemporaryDirectory(prefix="kvmm-app-", ignore_cleanup_errors=True) as folder:
        os.environ["GRADIO_TEMP_DIR"] = folder
        try:
            return run(args)
        finally:
            del os.environ["GRADIO_TEMP_DIR"]


def run(args: argparse.Namespace) -> int:
    """Check the arguments, build the page and serve it until it is interrupted; returns the exit code."""
    from kvmm.errors import KVMMError
    from kvmm.policy_file import parse_bytes

    try:
        user, colon, password = (args.auth or "").partition(":")
        if args.auth and not (user and colon and password):
            raise KVMMError("--auth takes a user name and a password with a colon between them")
        if args.max_pages is not None and args.max_pages < 1:
            raise KVMMError("--max-pages takes a number from 1")
        if args.max_upload < 1:
            raise KVMMError("--max-upload takes a number from 1")
        if args.mcp and importlib.util.find_spec("mcp") is None:
            raise KVMMError('--mcp needs one more package: pip install "kvmm[mcp]"')
        budget = None if args.cache_budget is None else parse_bytes(args.cache_budget, "--cache-budget")
        if args.max_new_tokens < 1:
            raise KVMMError("--max-new-tokens takes a number from 1")

        if args.data is not None and not os.path.isdir(args.data):
            raise KVMMError(f"--data {args.data} is no folder")

        check_address(args.host, args.port)

        from kvmm.ui import Models, build_demo, launch_options, share_arenas

        share_arenas()
        demo = build_demo(
            Models.named(args.model or [None], device=args.device, dtype=args.dtype),
            policy=args.policy,
            max_pages=args.max_pages,
            max_new_tokens=args.max_new_tokens,
            graph=args.graph,
            cache_budget=budget,
            data_folder=args.data,
        )
        try:
            demo.launch(
                server_name=args.host,
                server_port=args.port,
                auth=(user, password) if args.auth else None,
                inbrowser=args.open,
                mcp_server=args.mcp,
                **launch_options(max_file_mib=args.max_upload),
            )
        except OSError as error:  # Gradio found no free port
            raise KVMMError(f"cannot listen on {args.host}: choose another --port or --host") from error
    except KVMMError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # how services are stopped: clean up then, too
    sys.exit(main())
