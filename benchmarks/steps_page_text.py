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
    "whole; it ran with four timed steps. Columns that no such run had are those of the first table.",
)

SLOWER = (
    "by the medians of all rows above, whose last compiled and captured column (fast, of decoders) is held against "
    "diffusers as it is and compiled, and against other libraries."
)

UNTIMED = (
    "Z-Image as the other families are compiled, whose kernels nobody times; it is left to torch's choice, and the "
    "table of steps has runs of that. The rows of a lane are then those of one rank (`not picked by timing` above). At "
    "256x256 and 512x512 in an earlier run, before norm and rotation were one kernel; at 1024x1024 with it, both ways "
    "in one run of three rounds, beside a process that compiled on the same GPU. In a profile of that, without timing, "
    "products and attention were 81.6 of 89.4 ms of kernels a step.",
)

SINCE = (
    "## Since these runs",
    "",
    "Norm and rotation of queries and keys are one kernel in all families. Qwen-Image and Z-Image at 1024x1024 and Wan "
    "with 17 frames drew with it, and no other row: 245.2 ms a step for 265.3 before, 97.4 for 99.9 and 115.4 for "
    "123.8. Wan with 17 frames drew beside a process that compiled on the same GPU. Qwen-Image at 512x512 drew before "
    "its modulations were computed once a step, Z-Image at 256x256 and 512x512 before its two gate layers were one "
    "product.",
)

NOT_RUN = (
    "## Not run",
    "",
    "Empty cells. Steps as they are now (above); FLUX.2-klein. cache-dit 1.5.3 beside ours, which `--entrants "
    "cache_dit,cache_dit_reusing,ours_reusing` draws with where it is installed: it drew with small models on a CPU; "
    "one run on the GPU was ended after 118 s, when it still compiled. Other libraries beside other families. "
    "diffusers' compiled decoder beside ours. Compiled blocks of Qwen-Image, Wan and FLUX.2-klein on lanes, those of "
    "FLUX.1 with the kernel, and lanes of several GPUs (`--own-gpus`); captured ones ran on two "
    "([lanes](multi-gpu.md)). Lanes of more than two GPUs. On one GPU two ranks, which were threads, replayed captured "
    "passes in pieces between their exchanges with equal bits (`python -m benchmarks.graph_checks`). A stream of "
    "requests through the whole service, and many short ones for the sake of memory, are [on their own "
    "page](stream-h200.md).",
)
