"""How much memory a job will need, before it runs.

    allocator.py   a model of PyTorch's CUDA caching allocator
    blocks.py      its words: settings, rules of size, blocks, pools
    replay.py      the model checked against recordings made on real GPUs

Nothing here needs a GPU or torch.
"""
