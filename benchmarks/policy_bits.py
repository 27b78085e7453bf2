"""Measure what every preset holds of the four-page sample with the embedded model, for the app's list of policies.

python -m benchmarks.policy_bits     # writes kvmm/ui/policy_bits.json
"""

from __future__ import annotations

import json

from kvmm import policies
from kvmm.media import load_media
from kvmm.models import Conversation, assets_folder, load_model
from kvmm.policy_costs import BITS_PATH

DOCUMENT = "report.pdf"
QUESTION = "What are the visitors of July?"


def main() -> None:
    model, processor = load_model(device="cpu")
    media = load_media(assets_folder() / "samples" / DOCUMENT)
    rows = {}
    for name in policies():
        *_, last = Conversation(model, processor, name).ask(QUESTION, media, max_new_tokens=32)
        report = last.memory
        rows[name] = {
            "bits_per_value": round(report.bits_per_value, 4),
            "ratio": round(report.ratio, 3),
            "nbytes": report.nbytes,
            "nbytes_dense": report.nbytes_dense,
            "tokens": report.tokens,
            "answer": last.text,
        }
        print(f"{name:18} {report.bits_per_value:6.2f} bits  {report.ratio:5.2f}x  {last.text}")
    result = {
        "command": "python -m benchmarks.policy_bits",
        "document": f"a PDF of {len(media)} pages",
        "file": DOCUMENT,
        "question": QUESTION,
        "model": "embedded",
        "dtype": str(model.dtype).removeprefix("torch."),
        "policies": rows,
    }
    BITS_PATH.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
