"""Every system on the same data, backbone, budget and statistics: a grid of runs, and the tables made of it."""
