"""The benchmark: a grid of runs on the same data, backbone and budget, and the tables made from it."""
