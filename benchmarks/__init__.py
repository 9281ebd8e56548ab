"""What this library costs beside plain PyTorch, and beside any other implementation of the same interface.

    python -m benchmarks                                  every case
    python -m benchmarks loop_single loader               some
    python -m benchmarks --against other=/path/to/python  a second implementation, in the same run

Everything compared is run in turns (A B A B …), because the speed of a machine drifts more than the things differ.
"""
