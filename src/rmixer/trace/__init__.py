"""A training step without its memory: what would be allocated, when, and for what.

    recorder.py   runs any PyTorch program on fake tensors and notes every storage's life
    cost.py       FLOPs, bytes moved and kernels per operator
    ours.py       the trainings of RMixer under the recorder
    program.py    any ``build`` function under the recorder
    worker.py     the process in which this is done

`recorder` and `cost` import torch and the standard library alone: they are also loaded into the
interpreters of other people's programs.
"""
