"""Writes tests/data/vectors/reasoning.json: what the benchmarks' own scorers say of answers, to be agreed with.

Not a test and not run in CI. ``math_equivalence.py`` and ``util.py`` (``last_boxed_only_string``) are those of
github.com/hendrycks/math, in a folder given as the argument; GSM8K's filters and ``exact_match`` are the expressions of
lm-evaluation-harness' ``gsm8k.yaml``; ``hotpot_evaluate_v1.py`` is that of github.com/hotpotqa/hotpot.

    python tests/eval/metrics/make_reasoning_vectors.py FOLDER
"""

from __future__ import annotations

import itertools
import json
import re
import sys
from pathlib import Path

VECTORS = Path(__file__).parents[2] / "data" / "vectors"
ONES = [
    *(r"\frac{1}{2}", r"\frac12", r"\dfrac{1}{2}", r"\tfrac1{2}", "1/2", "0.5", ".5", "0.50", r"\frac1 2", "01/2"),
    *(r"x=5", "5", "k = 5", "xyz=5", r"5\text{ cm}", r"5\text{ cm}\text{ s}", r"5\%", "5%", r"\$5", "$5", "5.", "5.0"),
    *(
        r"\sqrt3",
        r"\sqrt{3}",
        r"2\sqrt 3",
        r"2\sqrt{3}",
        r"\sqrt",
        r"\frac",
        r"\frac1",
        r"\left( 1, 2 \right)",
        "(1,2)",
    ),
    *("90^\\circ", r"90^{\circ}", "90", "1,000", r"1{,}000", "1000", r"-\frac{3}{4}", "-3/4", r"\frac{-3}{4}", "3/-4"),
    *(
        "a = b = c",
        r"\text{Evelyn}",
        "Evelyn",
        r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}",
        "",
        " ",
        "x\n+1",
        "x+1",
        r"x\!+1",
    ),
    *(r"\frac ab", r"\frac{a}b", r"{.5}", r"{0.5}", "1/2/3", "１/2", "+1/2"),
]
TEXTS = [
    r"so $\boxed{5}$",
    r"\boxed{\frac{1}{2}} and then \boxed{x^{2}}",
    r"\boxed{unclosed",
    "no box",
    r"\boxed{}",
    r"\boxed{a}} \text{b}",
    r"\boxed{1} \boxed{2",
]
GSM = [
    ("She has 3 + 4 = 7 apples.\n#### 7", "#### 7"),
    ("The answer is $1,234.", "#### 1234"),
    ("#### 1,234\nDone with 5 steps.", "... #### 1234"),
    ("#### -12", "#### -12"),
    ("It is -12 degrees", "#### -12"),
    ("7.0", "#### 7"),
    ("It costs $5.50 in all", "#### 5.50"),
    ("no number", "#### 3"),
    ("So 18 of 20", "#### 18"),
    ("#### 42.", "#### 42"),
    ("####42", "#### 42"),
    ("The total is 3...", "#### 3"),
]
HOTPOT = [
    ("The Eiffel Tower", "eiffel tower"),
    ("yes", "yes"),
    ("yes, it is", "yes"),
    ("no", "yes"),
    ("noanswer", "Paris"),
    ("Paris, France", "Paris"),
    ("in the city of Paris", "Paris"),
    ("", "Paris"),
    ("Yes", "Yes Minister"),
    ("a an the", "x"),
    ("Chief of Protocol of the U.S.", "Chief of Protocol"),
]


def main(folder: str) -> None:
    """Write the vectors."""
    sys.path.insert(0, folder)
    from hotpot_evaluate_v1 import exact_match_score, f1_score
    from math_equivalence import is_equiv
    from util import last_boxed_only_string

    def bare(text: str) -> str:
        for pattern in (",", r"\$", "(?s).*#### ", r"\.$"):
            text = re.sub(pattern, "", text)
        return text.lower()

    def flexible(text: str) -> str:
        found = re.findall(r"(-?[$0-9.,]{2,})|(-?[0-9]+)", text)
        last = [part for part in found[-1] if part] if found else []
        return last[0].strip() if last else "[invalid]"

    def strict(text: str) -> str:
        found = re.findall(r"#### (\-?[0-9\.\,]+)", text)
        return found[0].strip() if found else "[invalid]"

    out = {
        "math": [[a, b, bool(is_equiv(a, b))] for a, b in itertools.product(ONES, ONES)],
        "boxed": [[text, last_boxed_only_string(text)] for text in TEXTS],
        "gsm8k": [
            [text, target, bare(strict(text)) == bare(target), bare(flexible(text)) == bare(target)]
            for text, target in GSM
        ],
        "hotpot": [[a, b, bool(exact_match_score(a, b)), f1_score(a, b)[0]] for a, b in HOTPOT],
    }
    (VECTORS / "reasoning.json").write_text(json.dumps(out, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
