"""A training step without its memory: what would be allocated, when, and for what.

    recorder.py   runs any PyTorch program on fake tensors and notes every storage's life
    surface.py    what the program sees of it: devices, values, files
    cost.py       FLOPs, bytes moved and kernels per operator
    ours.py       the trainings of RMixer under the recorder
    worker.py     the process in which that is done
    build.py      any ``build`` function under the recorder
    api.py        ``rmixer.estimate(build)``

`recorder`, `surface` and `cost` import torch and the standard library alone: they are also loaded
into the interpreters of other people's programs.
"""
