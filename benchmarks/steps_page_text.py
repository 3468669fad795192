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

SLOWER = (
    "by the medians, of ratios and of milliseconds, of the last run of each row above, whose last compiled and "
    "captured column (fast, of decoders) is held against diffusers as it is and compiled, and against other libraries."
)

SINCE = (
    "## Since these runs",
    "",
    "FLUX.1's rows on lanes are from before norm and rotation were one kernel. Under `fast` Z-Image has one product "
    "for queries, keys and values; in its [streams](stream-h200.md) and in [`epe bench`](bench-h200.md) it had three. "
    "In the first table its last ratio at 512x512 is one of a slow host: on a fast one the run before, with three, "
    "had 2.00× (22.9 ms). One was not drawn on a fast host: its 22.4 ms, or 4 % more than those 22.9, would be 2.04× "
    "or 1.93× there. Its captured graphs but the compiled ones, and its peaks, are of runs before, where 256x256 "
    "came after 512x512. In that table Wan with 17 frames and Z-Image at 256x256 and 512x512 drew beside processes "
    "that compiled on the same GPU; beside other libraries Wan drew alone.",
)

NOT_RUN = (
    "## Not run",
    "",
    "Empty cells. FLUX.2-klein. Z-Image with one product for queries, keys and values in one run with diffusers' "
    "compiled blocks, beside cache-dit at 256x256 and 512x512, in a service, and with the rows of a lane's rank for "
    "their time. Steps that other libraries leave out, beside ours that leave out as many: `--entrants "
    "cache_dit_reusing,ours_reusing` drew them with small models on a CPU. diffusers' compiled decoder beside ours: "
    "after 185 s nothing was drawn, though its `max-autotune` had timed the last of the convolutions after 116. "
    "Compiled blocks of Qwen-Image, Wan and FLUX.2-klein on lanes, and lanes of several GPUs (`--own-gpus`); captured "
    "ones ran on two ([lanes](multi-gpu.md)). Lanes of more than two GPUs. On one GPU two ranks, which were threads, "
    "replayed captured passes in pieces between their exchanges with equal bits (`python -m benchmarks.graph_checks`). "
    "A stream of requests through the whole service, and many short ones for the sake of memory, are [on their own "
    "page](stream-h200.md).",
)
