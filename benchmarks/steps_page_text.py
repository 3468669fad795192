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
    "`python -m benchmarks.h200_steps --only flux1 --sizes 1024x1024 --timed-steps 4 --entrants "
    f"diffusers,ours_compiled,{','.join(LIBRARIES)} >> RUN.jsonl`: the mean of four steps. cache-dit 1.5.3 compiles "
    "with its own settings of torch's compiler, for 150 s where ours took 18; of steps that it leaves out it computes "
    "the first eight blocks, its default. Ours leave them out by FreeCache. xfuser 0.7.0 leaves the model to diffusers "
    "on one GPU, and compiles it whole; it drew in a run before, in which ours had not yet the kernel for norm and "
    "rotation and diffusers took "
    "173.3 ms.",
)

SLOWER = (
    "by the medians of all rows above, whose last compiled and captured column (fast, of decoders) is held against "
    "diffusers as it is and compiled, and against other libraries."
)

# Of Z-Image's compiled blocks: the best as they are, and others that were tried beside them.
FORMS = {
    "ours_before": "modulations in each block, kernels picked by timing: as it was",
    "ours_compiled": "modulations beforehand, no kernel picked by timing: as it is",
    "ours_added": "that, with a kernel that norms, gates and adds",
    "ours_added_timed": "that, the other kernels picked by timing",
    "ours_added_joined": "that, not picked by timing, with one product for queries, keys and values",
}
FORMS_TEXT = (
    "In turn in one run of seven rounds. Kernels that nobody picks by timing add a row up in the same order on every "
    "rank. The kernel that norms, gates and adds took no less time in all than those of the compiler, and was not "
    "kept. With it a profile of four steps had 88.5 ms of kernels a step, 81.7 of them products and attention, and "
    "1.0 ms between them; timed steps, which follow others without a pause, took 95.5. One product for queries, keys "
    "and values took less in all seven rounds; alone, twenty in a graph, it took 531 µs where the three took 481. "
    "Why is not known, and its rows on lanes were not tried on a GPU, so it was not kept either.",
)

SINCE = (
    "## Since these runs",
    "",
    "Z-Image at 256x256 and 512x512, and its rows on lanes, are those of before its modulations were made "
    "beforehand; the former with kernels picked by timing, the latter without. FLUX.1's rows on lanes are from before "
    "norm and rotation were one kernel. Wan with 17 frames drew beside a process that compiled on the same GPU.",
)

NOT_RUN = (
    "## Not run",
    "",
    "Empty cells. FLUX.2-klein. cache-dit beside other families than FLUX.1: beside Z-Image it drew once with what "
    "torch had compiled for diffusers' own blocks, which is why the program refuses to have both in one run. Its and "
    "our steps with every second left out: `--entrants cache_dit_reusing,ours_reusing` drew them with small models on "
    "a CPU. xfuser beside others than FLUX.1 at 1024x1024: its transformer of Z-Image takes no call of diffusers "
    "0.42.1 (`joint_attention_kwargs`), those of Qwen-Image and Wan drew diffusers' latents with small models on a "
    "CPU. diffusers' compiled decoder beside ours: after 95 s its `max-autotune` had come to the last of its "
    "convolutions, when the run ended. Compiled blocks of Qwen-Image, Wan and FLUX.2-klein on lanes, those of Z-Image "
    "at width 4, and lanes of several GPUs (`--own-gpus`); captured ones ran on two ([lanes](multi-gpu.md)). Lanes of "
    "more than two GPUs. On one GPU two ranks, which were threads, replayed captured passes in pieces between their "
    "exchanges with equal bits (`python -m benchmarks.graph_checks`). A stream of requests through the whole service, "
    "and many short ones for the sake of memory, are [on their own page](stream-h200.md).",
)
