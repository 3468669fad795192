"""What `docs/results/h200.md` says around its tables."""

from __future__ import annotations

DECODING = (
    "`python -m benchmarks.h200_decode >> RUN.jsonl`: whole decodes, in turn; ratios as above. As it is: in bands, "
    "as a service decodes whose stage file asks for it, pictures captured. Compiled, diffusers has pictures' channels "
    "last and torch's `max-autotune`, as its documentation has them.",
)

ROWS = (
    "`python -m benchmarks.compiled_rows >> RUN.jsonl`: two steps of compiled blocks on lanes of 2 and 4 ranks, which "
    "were threads on one GPU, each with blocks of its own; with `--own-gpus` four steps of ranks with a GPU each, over "
    "NCCL, captured too. `=` are the bits of one rank, else the largest difference.",
)

# Beside diffusers and our best.
LIBRARIES = {
    "cache_dit": "cache-dit, all blocks",
    "xfuser": "xfuser",
    "cache_dit_reusing": "cache-dit, every second step left out",
    "ours_reusing": "ours, every second step left out",
}
LIBRARIES_COMMAND = (
    "`python -m benchmarks.h200_steps --only flux1 --sizes 1024x1024 --timed-steps 10 --entrants "
    f"diffusers,ours_compiled,{','.join(LIBRARIES)} >> RUN.jsonl`: the mean of ten steps. cache-dit 1.5.3 compiles "
    "with its own settings of torch's compiler; of steps that it leaves out it computes the first eight blocks, its "
    "default. Ours leave them out by FreeCache. xfuser 0.7.0 leaves the model to diffusers on one GPU, and compiles it "
    "whole.",
)

SLOWER = (
    "by the medians of all rows above, whose last compiled and captured column (fast, of decoders) is held against "
    "diffusers as it is and compiled, and against other libraries."
)

UNTIMED = (
    "Z-Image as the other families are compiled, in a later run with all five columns: its kernels are left to torch's "
    "choice since then, and the tables above have runs of that.",
)

SINCE = (
    "## Since these runs",
    "",
    "Norm and rotation of queries and keys are one kernel, with which Qwen-Image and Z-Image drew at 1024x1024, and no "
    "other row: Qwen-Image took 265.3 ms a step there before, Z-Image 99.9. All families but Wan have it now. "
    "Qwen-Image at 512x512 drew before its modulations were computed once a step, Z-Image at 256x256 and 512x512 "
    "before its two gate layers were one product.",
)

NOT_RUN = (
    "## Not run",
    "",
    "Empty cells. Steps as they are now (above). cache-dit 1.5.3 and xfuser "
    f"0.7.0 beside ours, which `--entrants {','.join(LIBRARIES)}` draws with where they are installed: "
    "cache-dit drew with small models on a CPU, xfuser refuses to be imported without an accelerator. "
    "Compiled blocks of other families on lanes, and on lanes of several GPUs (`--own-gpus`); captured "
    "ones ran on two ([lanes](multi-gpu.md)). Lanes of more than two GPUs. On one GPU two ranks, which "
    "were threads, replayed captured passes in pieces between their exchanges with equal bits (`python -m "
    "benchmarks.graph_checks`). A stream of requests through the whole service, and many short ones for "
    "the sake of memory, are [on their own page](stream-h200.md).",
)
