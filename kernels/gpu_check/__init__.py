"""The kernel on a GPU, in one visit of ten minutes: is it right, and how fast beside PyTorch's own.

    python3 -m kernels.gpu_check --out results.jsonl
    python3 -m kernels.gpu_check --dry-run    # without a GPU: every stage, small, in the emulator

It takes Python 3.11 or newer, PyTorch for CUDA, cuda-core and NVRTC; nothing of this project is installed.
Not yet run on a device: it was written on a machine without one.

Stages run in the order of `stages.STAGES`, the most important first, each in a process of its own with its
own time limit, so that a crash or a hang costs one stage. Nothing is forked after CUDA has started. What is
found is appended to a file of JSON lines as it is found (see `record`); each stage ends as PASS, FAIL or
NOT RUN.
"""
